#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/amp/amp_optimizer.h"
#include "mezzo/optim/named_parameter.h"

namespace mezzo {

/// Parameters that share hyperparameters.
struct ParamGroup {
  std::vector<NamedParameter> params;
  double weight_decay = 0;
};

/// Base of mezzo's optimizers: parameter groups, one learning rate, and named
/// state. Steps made of fused kernels that unscale gradients and skip on
/// overflow by themselves, on the device (GradScaler then never syncs).
///
/// Not thread-safe. No call syncs the device unless it says so.
class Optimizer : public AmpOptimizer {
 public:
  /// @throws c10::ValueError  for no parameters, one that is listed twice (or
  ///     whose name is), is no leaf, or does not require a gradient.
  Optimizer(std::vector<ParamGroup> groups, double lr);

  const std::vector<ParamGroup>& param_groups() const { return groups_; }
  double lr() const { return lr_; }
  void set_lr(double lr) { lr_ = lr; }

  /// Drops all gradients, so that backward writes fresh ones.
  void zero_grad();

  /// Updates every parameter that has a gradient.
  /// @param closure  if given, called first, with gradients enabled; its loss is returned.
  /// @throws c10::ValueError  naming the parameter whose gradient is sparse.
  at::Tensor step(const Closure& closure = {}) override;

  bool applies_scale_itself() const override { return true; }
  at::Tensor step_scaled(const std::optional<at::Tensor>& grad_scale, const at::Tensor& found_inf) override;
  void visit_parameters(const ParameterVisitor& visit) override;
  std::string parameter_name(size_t index) const override;

  /// State tensors by "slot/parameter name", e.g. "exp_avg/bert.pooler.dense.bias", sharing memory with the
  /// optimizer. Parameters that never had a gradient have none.
  std::map<std::string, at::Tensor> state_dict() const;

  /// Takes over what `state_dict` gave.
  /// @throws c10::ValueError  for an entry that does not belong here; nothing has changed then.
  void load_state_dict(const std::map<std::string, at::Tensor>& state);

 protected:
  /// The parameters of one group that have gradients, of one device and dtype, with their state slots in step.
  struct Bucket {
    std::vector<at::Tensor> params, grads;
    std::vector<std::vector<at::Tensor>> slots;  // [slot][parameter]
    double weight_decay;
  };

  virtual std::vector<std::string_view> slot_names() const = 0;
  /// The slot's value before the first step.
  virtual at::Tensor initial_slot(size_t slot, const at::Tensor& param) const = 0;
  /// One step of the bucket, without autograd. `grad_scale` to divide gradients by, and `found_inf` to skip where it is
  /// 1, are 1-element float32 on the bucket's device, or undefined.
  virtual void update(Bucket& bucket, const at::Tensor& grad_scale, const at::Tensor& found_inf) = 0;

 private:
  void apply(const at::Tensor& grad_scale, const at::Tensor& found_inf);

  std::vector<ParamGroup> groups_;
  double lr_;
  std::map<std::string, std::vector<at::Tensor>> state_;  // parameter name -> one tensor a slot
};

}  // namespace mezzo
