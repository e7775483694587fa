#pragma once

#include "mezzo/cpp20.h"

#include <torch/arg.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/optim/optimizer.h"

namespace mezzo {

struct RMSpropOptions {
  TORCH_ARG(double, lr) = 1e-2;
  /// Decay of the mean of squared gradients, in [0, 1).
  TORCH_ARG(double, alpha) = 0.99;
  TORCH_ARG(double, eps) = 1e-8;
  /// Of groups that have none of their own; added to the gradient.
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(double, momentum) = 0;
  /// Divides by the gradients' estimated standard deviation.
  TORCH_ARG(bool, centered) = false;
  TORCH_ARG(bool, maximize) = false;
  /// As StepOptions.
  TORCH_ARG(double, max_grad_norm) = 0;
  /// As StepOptions.
  TORCH_ARG(std::optional<uint64_t>, stochastic_rounding_seed) = std::nullopt;
};

/// RMSprop in one pass over the weights; the numbers and defaults of torch.optim.RMSprop up to a few
/// roundings.
class RMSprop : public Optimizer {
 public:
  /// @throws c10::ValueError  as Optimizer's constructor, and for an `alpha` outside [0, 1), an `eps` or
  ///     `momentum` that is negative or not finite
  explicit RMSprop(ParamGroups groups, RMSpropOptions options = {});
  explicit RMSprop(std::initializer_list<ParamGroup> groups, const RMSpropOptions& options = {})
      : RMSprop(ParamGroups(groups), options) {}
  std::string name() const override { return "RMSprop"; }

 protected:
  std::vector<std::string_view> slot_names() const override;
  bool counts_steps() const override { return true; }
  void update(const std::vector<ParameterUpdate>& updates, const GradientFactors& factors) override;
  TorchOptions hyperparameters() const override;
  void set_hyperparameters(const TorchOptions& options) override;

 private:
  RMSpropOptions options_;
};

}  // namespace mezzo
