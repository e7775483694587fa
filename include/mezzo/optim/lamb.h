#pragma once

#include "mezzo/cpp20.h"

#include <torch/optim/adam.h>

#include <vector>

#include "mezzo/optim/optimizer.h"

namespace mezzo {

/// The options of Adam, with `eps` 1e-6. `amsgrad` is an error. A group's options have LibTorch's
/// class: cast them to torch::optim::AdamOptions.
struct LAMBOptions : CheckedOptions<LAMBOptions, torch::optim::AdamOptions> {
  /// @throws c10::ValueError  for a learning rate that is negative or not finite
  LAMBOptions(double lr = 1e-3) : CheckedOptions(lr) { eps(1e-6); }

  /// @throws c10::ValueError  for `amsgrad`
  static void check(const torch::optim::AdamOptions& options);
};

/// LAMB (You et al. 2019, "Large batch optimization for deep learning", algorithm 2, with the
/// identity as phi and bias correction). The step is Adam's direction plus weight decay, scaled per
/// parameter to lr times the parameter's norm. If the parameter or direction has norm 0, the step
/// is not scaled.
///
/// Groups have torch::optim::AdamOptions, and the state is torch::optim::AdamParamState.
class LAMB : public detail::OptimizerOf<LAMBOptions, torch::optim::AdamOptions, torch::optim::AdamParamState> {
 public:
  using OptimizerOf::OptimizerOf;

 protected:
  void update(const torch::optim::OptimizerOptions& options,
              const std::vector<ParameterUpdate>& updates,
              const GradientFactors& factors) override;
};

}  // namespace mezzo
