#pragma once

#include "mezzo/cpp20.h"

#include <torch/optim/sgd.h>

#include <vector>

#include "mezzo/optim/optimizer.h"

namespace mezzo {

/// The options of torch::optim::SGDOptions. `lr` has PyTorch's default, 1e-3. A group's options
/// have LibTorch's class: cast them to torch::optim::SGDOptions.
struct SGDOptions : CheckedOptions<SGDOptions, torch::optim::SGDOptions> {
  /// Takes a learning rate or LibTorch's options.
  using CheckedOptions::CheckedOptions;
};

/// Stochastic gradient descent with momentum, with the numbers of torch.optim.SGD(fused=True).
/// Accepts sparse gradients (COO). Without momentum and weight decay, a step touches only their
/// rows.
class SGD : public detail::OptimizerOf<SGDOptions, torch::optim::SGDOptions, torch::optim::SGDParamState> {
 public:
  using OptimizerOf::OptimizerOf;

 protected:
  /// Sparse gradients are accepted.
  bool takes_sparse_gradients() const override { return true; }
  void update(const torch::optim::OptimizerOptions& options,
              const std::vector<ParameterUpdate>& updates,
              const GradientFactors& factors) override;
};

}  // namespace mezzo
