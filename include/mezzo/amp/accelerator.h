#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/grad_scaler.h"

namespace mezzo {

/// Options of Accelerator. An option that accelerate's Accelerator also has keeps its name.
struct AcceleratorOptions {
  /// Only its type counts: autocast is on for all devices of that type.
  TORCH_ARG(c10::Device, device) = at::kCPU;
  /// kHalf: autocast and a GradScaler. kBFloat16: autocast. kFloat: neither.
  TORCH_ARG(c10::ScalarType, dtype) = at::kFloat;
  /// Options of the GradScaler. Used only if `dtype` is kHalf.
  TORCH_ARG(GradScalerOptions, grad_scaler);
  /// Calls of `accumulate` per optimizer step. At least 1.
  TORCH_ARG(int64_t, gradient_accumulation_steps) = 1;
  /// Clips the gradients to this total L2 norm before a step. 0: the norm is not measured.
  /// Infinity: the norm is measured, and gradients are never clipped. An optimizer of mezzo has a
  /// `max_grad_norm` that does the same in one pass less: leave this at 0 then.
  TORCH_ARG(double, max_grad_norm) = 0;
  /// Called after each step that was not skipped: `[&] { scheduler.step(); }`.
  TORCH_ARG(std::function<void()>, lr_scheduler_step);
};

/// The result of one `Accelerator::accumulate`.
struct AccumulateResult {
  /// The closure's loss, detached: neither scaled nor divided.
  at::Tensor loss;
  /// The total norm of the gradients before clipping: 0-dim, on the gradients' device. Undefined if
  /// this call made no step. Also undefined if neither this object nor an optimizer of mezzo has a
  /// `max_grad_norm`.
  at::Tensor grad_norm;
  /// The optimizer's step; nullopt if this call only added to the gradients.
  std::optional<StepResult> step;

  /// Whether this call updated the parameters. Waits for the device if the optimizer decides there.
  bool stepped() const { return step && step->stepped(); }
};

/// A whole training step in one call. It runs in this order:
/// 1. Autocast, forward and the loss, divided by the number of micro-batches and scaled.
/// 2. Backward, unscaling and clipping.
/// 3. The optimizer's step, the schedule's step and the update of the scale.
/// 4. Gradients are dropped for the next step.
///
/// @code
/// mezzo::AdamW optimizer(model->parameters(), mezzo::AdamWOptions(3e-5));
/// mezzo::Accelerator accelerator(
///     optimizer, mezzo::AcceleratorOptions().device(torch::kCUDA).dtype(torch::kHalf).max_grad_norm(1.0));
/// for (const auto& [input, target] : batches) {
///   const auto result = accelerator.accumulate(*model, [&] { return loss_fn(model->forward(input), target); });
/// }
/// @endcode
///
/// Holds a reference to the optimizer. Gradients are dropped at construction. Not thread-safe.
/// Waits for the device when GradScaler::step does. If there is a schedule, also waits after each
/// step.
/// @see accelerate.Accelerator.accumulate (Python). Differs: the end of the data is an argument.
class Accelerator {
 public:
  /// @throws c10::ValueError  for another dtype, no accumulation steps, or a `max_grad_norm` that
  ///     is negative or NaN; for GradScalerOptions, the errors of GradScaler
  explicit Accelerator(torch::optim::Optimizer& optimizer, AcceleratorOptions options = {});

  /// Runs `closure` under autocast and the backward of its loss outside autocast. Steps at every
  /// `gradient_accumulation_steps`-th call.
  /// @param model  With a DistributedDataParallel, calls that make no step run under its `no_sync`,
  ///     and its `backward` names a rank that fails. Models of other types are not called.
  /// @param closure  computes and returns the loss of one micro-batch: one number
  /// @param is_last  true: this call steps at any count, as for the last batch of an epoch. The
  ///     losses are still divided by `gradient_accumulation_steps`, as in accelerate.
  /// @throws c10::ValueError  for a loss that is not one number. After this error, or an exception
  ///     of the closure, the call may be made again.
  /// @throws c10::Error  the errors of GradScaler::step. All gradients are dropped then, and the
  ///     next call begins a new step.
  template <class Model, std::invocable Closure>
    requires std::convertible_to<std::invoke_result_t<Closure&>, at::Tensor>
  AccumulateResult accumulate(Model& model, Closure&& closure, bool is_last = false) {
    const bool steps = is_last || accumulated_ + 1 >= options_.gradient_accumulation_steps();
    at::Tensor loss;
    if constexpr (requires { model.no_sync(true), model.backward(loss); }) {
      [[maybe_unused]] const auto no_sync = model.no_sync(!steps);
      loss = add_gradients(closure, [&](const at::Tensor& scaled) { model.backward(scaled); });
    } else {
      loss = add_gradients(closure, [](const at::Tensor& scaled) { scaled.backward(); });
    }
    return steps ? take_step(std::move(loss)) : AccumulateResult{std::move(loss), {}, {}};
  }

  /// The scaler: save and load its state, or read the scale. Disabled unless the dtype is kHalf.
  GradScaler& scaler() { return scaler_; }

 private:
  at::Tensor add_gradients(const std::function<at::Tensor()>& closure,
                           const std::function<void(const at::Tensor&)>& backward);
  AccumulateResult take_step(at::Tensor loss);
  void start_afresh();

  torch::optim::Optimizer& optimizer_;
  AcceleratorOptions options_;
  GradScaler scaler_;
  int64_t accumulated_ = 0;  // micro-batches whose gradients are there
};

}  // namespace mezzo
