#include "mezzo/optim/lamb.h"

#include <c10/util/Exception.h>

#include "kernels/optimizer_kernels.h"

namespace mezzo {

void LAMBOptions::check(const torch::optim::AdamOptions& options) {
  TORCH_CHECK_VALUE(!options.amsgrad(), "LAMB has no amsgrad. Set amsgrad to false");
}

void LAMB::update(const torch::optim::OptimizerOptions& options,
                  const std::vector<ParameterUpdate>& updates,
                  const GradientFactors& factors) {
  const auto& of_torch = static_cast<const torch::optim::AdamOptions&>(options);
  const auto [beta1, beta2] = of_torch.betas();
  kernels::lamb(updates, {.beta1 = beta1, .beta2 = beta2, .eps = of_torch.eps(), .maximize = maximizes()}, factors);
}

}  // namespace mezzo
