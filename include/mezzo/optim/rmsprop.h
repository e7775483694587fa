#pragma once

#include "mezzo/cpp20.h"

#include <torch/optim/rmsprop.h>

#include <vector>

#include "mezzo/optim/optimizer.h"

namespace mezzo {

/// The options of torch::optim::RMSpropOptions, with the same defaults: `lr` 1e-2. A group's
/// options have LibTorch's class: cast them to torch::optim::RMSpropOptions.
struct RMSpropOptions : CheckedOptions<RMSpropOptions, torch::optim::RMSpropOptions> {
  /// Takes LibTorch's options.
  using CheckedOptions::CheckedOptions;
  /// @param lr  learning rate
  RMSpropOptions(double lr = 1e-2) : CheckedOptions(lr) {}
};

/// RMSprop in one pass over the weights, with the numbers of torch.optim.RMSprop up to a few
/// roundings. On the CPU, denormal moments are stored as 0, except with `centered`.
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
