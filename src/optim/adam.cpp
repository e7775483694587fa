#include "mezzo/optim/adam.h"

#include "kernels/optimizer_kernels.h"

namespace mezzo {
namespace {

template <class Options>
kernels::AdamSettings adam_settings(const torch::optim::OptimizerOptions& options, bool decoupled, bool maximize) {
  const auto& of_torch = static_cast<const Options&>(options);
  const auto [beta1, beta2] = of_torch.betas();
  return {.beta1 = beta1,
          .beta2 = beta2,
          .eps = of_torch.eps(),
          .amsgrad = of_torch.amsgrad(),
          .decoupled = decoupled,
          .maximize = maximize};
}

}  // namespace

void Adam::update(const torch::optim::OptimizerOptions& options,
                  const std::vector<ParameterUpdate>& updates,
                  const GradientFactors& factors) {
  kernels::adam(updates, adam_settings<torch::optim::AdamOptions>(options, /*decoupled=*/false, maximizes()), factors);
}

void AdamW::update(const torch::optim::OptimizerOptions& options,
                   const std::vector<ParameterUpdate>& updates,
                   const GradientFactors& factors) {
  kernels::adam(updates, adam_settings<torch::optim::AdamWOptions>(options, /*decoupled=*/true, maximizes()), factors);
}

}  // namespace mezzo
