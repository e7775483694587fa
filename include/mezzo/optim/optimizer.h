#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mezzo/optim/amp_optimizer.h"
#include "mezzo/optim/gradient_verdict.h"
#include "mezzo/optim/named_parameter.h"
#include "mezzo/optim/torch_state.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace mezzo {

struct GradientFactors;  // of src/kernels/parameter_update.h
struct ParameterUpdate;

/// Parameters that share hyperparameters.
struct ParamGroup {
  std::vector<NamedParameter> params;
  std::optional<double> weight_decay = {};  ///< at least 0; nullopt: the optimizer's own, which it fills in
  double lr_scale = 1;                      ///< at least 0; multiplies the optimizer's learning rate
};

/// What an optimizer trains. Converts from groups; from parameters, `{{"weight", weight},
/// {"bias", bias}}` or a vector of them, as one group; and from a module, `*model`, as one group
/// of those that require a gradient.
class ParamGroups {
 public:
  ParamGroups(std::vector<ParamGroup> groups) : groups_(std::move(groups)) {}
  ParamGroups(std::initializer_list<ParamGroup> groups) : groups_(groups) {}
  ParamGroups(std::vector<NamedParameter> parameters);
  ParamGroups(std::initializer_list<NamedParameter> parameters) : ParamGroups(std::vector(parameters)) {}
  ParamGroups(const torch::nn::Module& module);

 private:
  friend class Optimizer;
  std::vector<ParamGroup> groups_;
};

/// What every optimizer of mezzo can do besides its update; each has these among its own options.
struct StepOptions {
  double lr = 0;
  /// The gradients' total L2 norm is clipped to it. 0: they are not measured.
  /// Infinity: measured, never clipped.
  double max_grad_norm = 0;
  /// bfloat16 parameters are rounded up or down at random, with the seed given, so that updates too
  /// small for them count on average. nullopt: rounded to nearest.
  std::optional<uint64_t> stochastic_rounding_seed = {};
  double weight_decay = 0;  ///< of groups that have none of their own
};

/// Base of mezzo's optimizers: parameter groups, one learning rate, and named state. A step reads
/// gradients twice at most: to check and measure them, where that is asked for, and to unscale,
/// clip and apply them, refreshing shadows on the way. It never writes to gradients, and decides on
/// the device.
///
/// Parameters of float16 or bfloat16 keep their moments in float32, as PyTorch does not. On the
/// CPU, dense float32, float16 and bfloat16 tensors are updated by kernels whose results do not
/// depend on the number of threads; all others by LibTorch's fused operations.
///
/// Not thread-safe. No call syncs the device unless it says so.
class Optimizer : public AmpOptimizer {
 public:
  /// @throws c10::ValueError  for no parameters, or one that is listed twice, has the name of
  ///     another, is no leaf, does not require a gradient, is of another dtype than float32,
  ///     float64, float16 and bfloat16, or has a shadow of another shape or dtype; for a learning
  ///     rate, weight decay or `lr_scale` that is negative or not finite; for a negative
  ///     `max_grad_norm`; for a float16 parameter if stochastic rounding is asked for.
  Optimizer(ParamGroups groups, const StepOptions& options);
  /// A copy would share the moments. A scaler and a scheduler know an optimizer by its address.
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Trains these, too, from now on, such as layers that were frozen before. Errors as of the
  /// constructor; nothing has changed then.
  void add_param_group(ParamGroup group);

  const std::vector<ParamGroup>& param_groups() const { return groups_; }
  /// The learning rate, which each group multiplies by its `lr_scale`. Syncs where it is a tensor
  /// on a device.
  double lr() const;
  /// If the learning rate is a tensor, writes to that tensor, which no step that was queued before
  /// sees.
  /// @throws c10::ValueError  for one that is negative or not finite
  void set_lr(double lr);
  /// Has every step read the learning rate from `lr` when it runs, so that neither a device nor a
  /// captured graph waits for its value: 0-dim, float64, on the device of a parameter. Shared with
  /// the caller, who changes it in place between steps, alone, by `set_lr(double)`, an LrScheduler
  /// or a DeviceLrSchedule. Groups multiply it by their `lr_scale` in float64: the bits are those
  /// of a number. Parameters of other devices are updated by a copy, made at every step; saved
  /// states hold its value.
  /// @throws c10::ValueError  for another shape, dtype or device, and one that requires a gradient;
  ///     on the CPU for a value that is negative or not finite, here and at each step. On other
  ///     devices values are not looked at. Nothing has changed then.
  /// @see torch.optim's `lr` as a Tensor with `capturable=True` (Python). Differs: in float64;
  ///     LibTorch's fused kernels for CUDA, which mezzo runs where it has none of its own, as for
  ///     float64 parameters, round it to float32.
  void set_lr(at::Tensor lr);
  /// The tensor given to `set_lr`; undefined where the learning rate is a number.
  const at::Tensor& lr_tensor() const { return lr_tensor_; }

  /// From now on asks `hook` once about what each `check_gradients` found, and about each step that
  /// was not checked so; `grad_norm`, `found_inf` and clipping go by its answer. So optimizers of
  /// several processes that divide one model's parameters can add up what they found
  /// (ZeroRedundancyOptimizer). Not called by a step that neither measures gradients nor is told a
  /// verdict.
  void register_verdict_hook(VerdictHook hook) { verdict_hook_ = std::move(hook); }

  /// Drops all gradients, so that backward writes fresh ones.
  void zero_grad();

  /// Updates every parameter that has a gradient. With `max_grad_norm`, does nothing where the
  /// gradients' norm is inf or NaN; without, such gradients reach the weights, as in PyTorch.
  /// @param closure  if given, called first, with gradients enabled; its loss is returned.
  /// @throws c10::ValueError  naming the parameter whose gradient is sparse, or lies
  ///   both on it and on its shadow.
  at::Tensor step(const Closure& closure = {}) override;

  /// The norm of the true gradients at the last step, before clipping: float32, or float64 if a
  /// gradient is, 0-dim, on the device of the first gradient, or of the loss scale. Measured with `max_grad_norm`, or
  /// by a scaler's check of scaled gradients; else undefined.
  const at::Tensor& grad_norm() const { return grad_norm_; }
  /// 1 where the last step was skipped, else 0: float32, 0-dim; undefined
  /// where nothing was checked.
  at::Tensor found_inf() const override { return found_inf_; }

  bool applies_scale_itself() const override { return true; }
  /// The parameter, where its gradient lies on its shadow.
  at::Tensor master_of(size_t index) const override;
  std::optional<at::Tensor> check_gradients(const std::optional<at::Tensor>& scale) override;
  at::Tensor step_scaled(const std::optional<at::Tensor>& grad_scale, const at::Tensor& found_inf) override;
  /// Visits the tensors that own gradients: shadows, where backward reached those.
  void visit_parameters(const ParameterVisitor& visit) override;
  std::string parameter_name(size_t index) const override;

  /// State tensors by "slot/parameter name", e.g. "exp_avg/bert.pooler.dense.bias", sharing memory
  /// with the optimizer. Parameters that never had a gradient have none.
  std::map<std::string, at::Tensor> state_dict() const;

  /// Takes over what `state_dict` gave. Parameters that have no entries start afresh. Copies into
  /// the tensors that are there, so that a recorded step (GraphedStep) goes on with the new values.
  /// @throws c10::ValueError  for an entry that does not belong here; nothing has changed then.
  void load_state_dict(const std::map<std::string, at::Tensor>& state);
  /// The same errors; changes nothing.
  void check_state_dict(const std::map<std::string, at::Tensor>& state) const;

  /// The state in torch.optim's layout, to go on with in Python; tensors are shared.
  TorchOptimizerState torch_state_dict() const;

  /// Takes over a state of torch.optim's layout: tensors, in place, learning rate, weight decay and
  /// the optimizer's own hyperparameters. Groups keep their `lr_scale`. If it is 0 for all, the
  /// learning rate stays as it is.
  /// @throws c10::ValueError  for groups or tensors of other shapes, hyperparameters that are out of
  ///     their range or differ between groups, learning rates that are not in the ratio of the
  ///     groups' `lr_scale`, and an optimizer of another kind, such as with amsgrad or without;
  ///     nothing has changed then
  void load_torch_state_dict(const TorchOptimizerState& state);

 protected:
  /// The moments it keeps of each parameter. They start at 0.
  virtual std::vector<std::string_view> slot_names() const = 0;
  /// Whether the update itself needs to know how many there were.
  virtual bool counts_steps() const = 0;
  /// One step of parameters of one device, without autograd.
  virtual void update(const std::vector<ParameterUpdate>& updates, const GradientFactors& factors) = 0;
  /// All but lr and weight_decay, as torch.optim names them.
  virtual TorchOptions hyperparameters() const = 0;
  /// Takes over those of `options` that can be changed.
  virtual void set_hyperparameters(const TorchOptions& options) = 0;

 private:
  /// What there is to know before a step: the verdict, and what gradients are multiplied by, each
  /// undefined where they are not.
  struct Look {
    GradientVerdict verdict;
    at::Tensor inv_scale, clip;
  };
  /// What check_gradients found, and by which scale it divided.
  struct Checked {
    std::optional<at::Tensor> scale;
    Look look;
  };

  void check_groups(const std::vector<ParamGroup>& groups) const;
  std::vector<std::string_view> all_slot_names() const;
  std::vector<at::Tensor> initial_state(const at::Tensor& param) const;
  bool fits(const std::vector<at::Tensor>& state, const at::Tensor& param) const;
  std::vector<ParameterUpdate> collect_updates();
  const NamedParameter& parameter_at(size_t index) const;
  Look look(const std::optional<at::Tensor>& scale, const at::Tensor& found_inf, bool measures) const;
  void apply(const Look& look);

  std::vector<ParamGroup> groups_;
  StepOptions options_;
  at::Tensor lr_tensor_;  // in place of that of the options, where it is defined
  VerdictHook verdict_hook_;
  std::map<std::string, std::vector<at::Tensor>> state_;  // parameter name -> the step count, if any, and its slots
  std::optional<Checked> checked_;                        // by check_gradients, for the step that follows
  at::Tensor grad_norm_, found_inf_;
};

/// For `torch::save` and `torch::load`: state, learning rate, weight decay and the optimizer's own
/// hyperparameters, by the place of each parameter in the groups. Errors as of
/// `load_torch_state_dict`, and for the archive of another optimizer.
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const Optimizer& optimizer);
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, Optimizer& optimizer);

}  // namespace mezzo
