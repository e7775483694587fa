#pragma once

#include "mezzo/cpp20.h"

#include <torch/optim/sgd.h>

#include <vector>

#include "mezzo/optim/optimizer.h"

namespace mezzo {

/// torch::optim::SGDOptions. `lr` has PyTorch's default, 1e-3.
/// A group's options are of LibTorch's class: cast to torch::optim::SGDOptions.
struct SGDOptions : CheckedOptions<SGDOptions, torch::optim::SGDOptions> {
  using CheckedOptions::CheckedOptions;
};

/// Stochastic gradient descent with momentum; the numbers of torch.optim.SGD(fused=True). Takes
/// sparse gradients (COO). Without momentum and weight decay, a step touches their rows alone.
class SGD : public detail::OptimizerOf<SGDOptions, torch::optim::SGDOptions, torch::optim::SGDParamState> {
 public:
  using OptimizerOf::OptimizerOf;

 protected:
  bool takes_sparse_gradients() const override { return true; }
  void update(const torch::optim::OptimizerOptions& options,
              const std::vector<ParameterUpdate>& updates,
              const GradientFactors& factors) override;
};

}  // namespace mezzo
