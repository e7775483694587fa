#include "mezzo/optim/lamb.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "kernels/optimizer_kernels.h"

namespace mezzo {

void LAMB::check_options(const NamedOptions& options, std::string_view where) const {
  Optimizer::check_options(options, where);
  TORCH_CHECK_VALUE(std::ranges::count(options, std::pair<std::string_view, TorchOption>("amsgrad", true)) == 0, where,
                    "LAMB has no amsgrad");
}

void LAMB::update(const torch::optim::OptimizerOptions& options,
                  const std::vector<ParameterUpdate>& updates,
                  const GradientFactors& factors) {
  const auto& of_torch = static_cast<const torch::optim::AdamOptions&>(options);
  const auto [beta1, beta2] = of_torch.betas();
  kernels::lamb(updates, {.beta1 = beta1, .beta2 = beta2, .eps = of_torch.eps(), .maximize = maximizes()}, factors);
}

}  // namespace mezzo
