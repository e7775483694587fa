#include "mezzo/optim/rmsprop.h"

#include "kernels/optimizer_kernels.h"

namespace mezzo {

void RMSprop::update(const torch::optim::OptimizerOptions& options,
                     const std::vector<ParameterUpdate>& updates,
                     const GradientFactors& factors) {
  const auto& of_torch = static_cast<const torch::optim::RMSpropOptions&>(options);
  kernels::rmsprop(updates,
                   {.alpha = of_torch.alpha(),
                    .eps = of_torch.eps(),
                    .momentum = of_torch.momentum(),
                    .centered = of_torch.centered(),
                    .maximize = maximizes()},
                   factors);
}

}  // namespace mezzo
