#include "mezzo/optim/sgd.h"

#include "kernels/optimizer_kernels.h"

namespace mezzo {

void SGD::update(const torch::optim::OptimizerOptions& options,
                 const std::vector<ParameterUpdate>& updates,
                 const GradientFactors& factors) {
  const auto& of_torch = static_cast<const torch::optim::SGDOptions&>(options);
  kernels::sgd(updates,
               {.momentum = of_torch.momentum(),
                .nesterov = of_torch.nesterov(),
                .dampening = of_torch.dampening(),
                .maximize = maximizes()},
               factors);
}

}  // namespace mezzo
