#pragma once

#include "mezzo/cpp20.h"

#include <torch/optim/rmsprop.h>

#include <vector>

#include "mezzo/optim/optimizer.h"

namespace mezzo {

/// torch::optim::RMSpropOptions, the same defaults: `lr` 1e-2.
/// A group's options are of LibTorch's class: cast to torch::optim::RMSpropOptions.
struct RMSpropOptions : CheckedOptions<RMSpropOptions, torch::optim::RMSpropOptions> {
  using CheckedOptions::CheckedOptions;
  RMSpropOptions(double lr = 1e-2) : CheckedOptions(lr) {}
};

/// RMSprop in one pass over the weights; the numbers of torch.optim.RMSprop up to a few roundings.
/// On the CPU, moments that become denormal are stored as 0, except with `centered`.
class RMSprop
    : public detail::OptimizerOf<RMSpropOptions, torch::optim::RMSpropOptions, torch::optim::RMSpropParamState> {
 public:
  using OptimizerOf::OptimizerOf;

 protected:
  void update(const torch::optim::OptimizerOptions& options,
              const std::vector<ParameterUpdate>& updates,
              const GradientFactors& factors) override;
};

}  // namespace mezzo
