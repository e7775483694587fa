#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

namespace mezzo {

/// What a GradScaler needs to know of an optimizer. `torch::optim` optimizers are adapted
/// automatically; for one of your own, override `name`, `visit_parameters` and `step`. One that
/// unscales and skips on the device, so that a training step never waits for it, overrides
/// `applies_scale_itself` and `step_scaled` too.
class AmpOptimizer {
 public:
  /// Computes the loss and its gradients afresh; returns the loss.
  using Closure = std::function<at::Tensor()>;
  using ParameterVisitor = std::function<void(at::Tensor& parameter)>;

  virtual ~AmpOptimizer() = default;

  /// For messages, such as "torch::optim::SGD".
  virtual std::string name() const = 0;

  /// For messages: the `index`-th tensor that `visit_parameters` visits.
  virtual std::string parameter_name(size_t index) const;

  /// Calls `visit` on every parameter, in the same order each time. The visitor reads gradients,
  /// changes them in place and may replace them.
  virtual void visit_parameters(const ParameterVisitor& visit) = 0;

  /// Updates the parameters from their true (unscaled, finite) gradients. `closure` may be empty;
  /// otherwise it leaves such gradients at each call.
  /// @return the loss, or an undefined tensor where there is none
  virtual at::Tensor step(const Closure& closure) = 0;

  /// Whether the scaler should call `step_scaled` in place of `step`.
  virtual bool applies_scale_itself() const { return false; }

  /// Whether a gradient, divided by `scale` (float32, 0-dim), is inf or NaN: 1 or 0, float32,
  /// 0-dim, on the device of `scale`; undefined where there is no gradient. For an optimizer that
  /// reads all gradients anyway, to measure their norm. Asked right before `step_scaled`, with
  /// `scale` its `grad_scale`; must not wait for the device, nor change gradients or the
  /// optimizer's state.
  /// @param scale  nullopt: `unscale_` has divided already. Asked so with GradScalerOptions'
  ///     `agree` only, so that all processes know what this optimizer would find before any of them
  ///     steps.
  /// @return nullopt (the default): the scaler is to look by itself; after `unscale_`, there is
  ///     nothing to add.
  virtual std::optional<at::Tensor> check_gradients(const std::optional<at::Tensor>& scale);

  /// Updates the parameters from gradients that are still scaled, or does nothing where they
  /// overflowed; must not wait for the device.
  /// @param grad_scale  what to divide gradients by, in float32, as a half gradient may be finite
  ///     only there (float32, 0-dim, on the device of the scale); nullopt when `unscale_` has
  ///     already done so.
  /// @param found_inf  1 to skip, 0 to step (float32, 0-dim, same device). Skipping leaves
  ///     parameters, state and step counts as they were.
  virtual at::Tensor step_scaled(const std::optional<at::Tensor>& grad_scale, const at::Tensor& found_inf);

  /// Of an optimizer that measures or checks gradients by itself, the verdict on its last step, and
  /// the last word on whether it stepped: 1 where it changed nothing, else 0; float32, 0-dim, on
  /// any device. Undefined (the default): it does as it is told.
  virtual at::Tensor found_inf() const { return {}; }

  /// The float32 tensor that is updated in place of the `index`-th visited parameter, and refreshes
  /// it. `unscale_` gives it the unscaled gradient, since 1e-8 is 0 in float16, and drops the
  /// parameter's; `visit_parameters` visits it then. Undefined (the default): none, `unscale_`
  /// divides in place.
  virtual at::Tensor master_of(size_t index) const;

  /// Whether `unscale_` may divide in place the float16 gradients of parameters without a master,
  /// small ones becoming 0: where nothing is updated from them, as of parameters that another
  /// process updates.
  virtual bool allows_half_gradients() const { return false; }

  /// Returns a function that puts the optimizer's state (not the parameters) back to what it is
  /// now. Asked for before a step with a closure, and called if a later evaluation of that closure
  /// overflows. By default, nothing is kept: right for an optimizer that calls its closure once and
  /// first.
  virtual std::function<void()> save_state() {
    return [] {};
  }

  /// Tells optimizers apart; the scaler keeps one stage for each.
  virtual const void* identity() const { return this; }
};

/// A `torch::optim::Optimizer` as an AmpOptimizer. Holds a reference, so it must not outlive the
/// optimizer. `save_state` copies the state of LBFGS; tensors in the state of optimizers that
/// LibTorch does not ship are not copied.
class TorchOptimizerAdapter final : public AmpOptimizer {
 public:
  explicit TorchOptimizerAdapter(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}

  std::string name() const override;
  std::string parameter_name(size_t index) const override;  ///< "parameter 1 of group 0"
  void visit_parameters(const ParameterVisitor& visit) override;
  at::Tensor step(const Closure& closure) override { return optimizer_.step(closure); }
  std::function<void()> save_state() override;
  const void* identity() const override { return &optimizer_; }

 private:
  torch::optim::Optimizer& optimizer_;
};

/// Any optimizer a GradScaler can drive, passed by reference: converts from an AmpOptimizer and
/// from a `torch::optim::Optimizer`. One that is both is taken as the AmpOptimizer it is, also
/// behind a `torch::optim::Optimizer&`.
class AmpOptimizerRef {
 public:
  AmpOptimizerRef(AmpOptimizer& optimizer) : optimizer_(&optimizer) {}
  AmpOptimizerRef(torch::optim::Optimizer& optimizer);

  template <class Optimizer>
    requires std::derived_from<Optimizer, AmpOptimizer> && std::derived_from<Optimizer, torch::optim::Optimizer>
  AmpOptimizerRef(Optimizer& optimizer) : AmpOptimizerRef(static_cast<AmpOptimizer&>(optimizer)) {}

  AmpOptimizerRef(const AmpOptimizerRef&) = delete;
  AmpOptimizerRef& operator=(const AmpOptimizerRef&) = delete;

  AmpOptimizer& operator*() const { return *optimizer_; }
  AmpOptimizer* operator->() const { return optimizer_; }

 private:
  std::optional<TorchOptimizerAdapter> adapter_;
  AmpOptimizer* optimizer_;
};

}  // namespace mezzo
