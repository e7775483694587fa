#pragma once

#include <torch/arg.h>

#include <vector>

#include "mezzo/optim/optimizer.h"

namespace mezzo {

struct SGDOptions {
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(double, momentum) = 0;
  TORCH_ARG(bool, nesterov) = false;
};

/// Stochastic gradient descent with momentum; the numbers of torch.optim.SGD(fused=True), dampening 0.
class SGD : public Optimizer {
 public:
  SGD(std::vector<ParamGroup> groups, SGDOptions options);
  std::string name() const override { return "SGD"; }

 protected:
  std::vector<std::string_view> slot_names() const override;
  at::Tensor initial_slot(size_t slot, const at::Tensor& param) const override;
  void update(Bucket& bucket, const at::Tensor& grad_scale, const at::Tensor& found_inf) override;

 private:
  SGDOptions options_;
};

}  // namespace mezzo
