#pragma once

#include "mezzo/cpp20.h"

#include <torch/arg.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "mezzo/optim/optimizer.h"

namespace mezzo {

struct SGDOptions {
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(double, momentum) = 0;
  TORCH_ARG(bool, nesterov) = false;
  /// Of groups that have none of their own; added to the gradient.
  TORCH_ARG(double, weight_decay) = 0;
  /// As StepOptions.
  TORCH_ARG(double, max_grad_norm) = 0;
  /// As StepOptions.
  TORCH_ARG(std::optional<uint64_t>, stochastic_rounding_seed) = std::nullopt;
};

/// Stochastic gradient descent with momentum; the numbers and defaults of
/// torch.optim.SGD(fused=True), dampening 0.
class SGD : public Optimizer {
 public:
  explicit SGD(ParamGroups groups, SGDOptions options = {});
  explicit SGD(std::initializer_list<ParamGroup> groups, const SGDOptions& options = {})
      : SGD(ParamGroups(groups), options) {}
  std::string name() const override { return "SGD"; }

 protected:
  std::vector<std::string_view> slot_names() const override;
  bool counts_steps() const override { return false; }
  void update(const std::vector<ParameterUpdate>& updates, const GradientFactors& factors) override;
  TorchOptions hyperparameters() const override;
  void set_hyperparameters(const TorchOptions& options) override;

 private:
  SGDOptions options_;
};

}  // namespace mezzo
