#pragma once

#include "mezzo/cpp20.h"

#include <torch/optim/adam.h>

#include <vector>

#include "mezzo/optim/optimizer.h"

namespace mezzo {

/// Those of Adam, with `eps` 1e-6. `amsgrad` is refused. A group's options are of LibTorch's class:
/// cast to torch::optim::AdamOptions.
struct LAMBOptions : CheckedOptions<LAMBOptions, torch::optim::AdamOptions> {
  LAMBOptions(double lr = 1e-3) : CheckedOptions(lr) { eps(1e-6); }

  /// @throws c10::ValueError  for `amsgrad`
  static void check(const torch::optim::AdamOptions& options);
};

/// LAMB (You et al. 2019, "Large batch optimization for deep learning", algorithm 2, with the
/// identity as phi and bias correction): Adam's direction plus weight decay, scaled per parameter
/// to lr times the parameter's norm. A parameter or direction of norm 0 takes the plain step.
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
