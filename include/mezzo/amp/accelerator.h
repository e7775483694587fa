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

/// The names of accelerate's Accelerator, where it has the option.
struct AcceleratorOptions {
  /// Only its type counts: autocast is on for all devices of that type.
  TORCH_ARG(c10::Device, device) = at::kCPU;
  /// kHalf: autocast and a GradScaler. kBFloat16: autocast. kFloat: neither.
  TORCH_ARG(c10::ScalarType, dtype) = at::kFloat;
  /// Of the GradScaler; read with kHalf alone.
  TORCH_ARG(GradScalerOptions, grad_scaler);
  /// Calls of `accumulate` that make one step of the optimizer. At least 1.
  TORCH_ARG(int64_t, gradient_accumulation_steps) = 1;
  /// Gradients are clipped to this total L2 norm before a step. 0: they are not measured. Infinity:
  /// measured, never clipped. With an optimizer of mezzo, the optimizer's own `max_grad_norm` does
  /// the same in one pass less: leave this at 0 then.
  TORCH_ARG(double, max_grad_norm) = 0;
  /// Called after each step that was not skipped: `[&] { scheduler.step(); }`.
  TORCH_ARG(std::function<void()>, lr_scheduler_step);
};

/// The result of one `Accelerator::accumulate`.
struct AccumulateResult {
  /// The closure's loss, detached: neither scaled nor divided.
  at::Tensor loss;
  /// The total norm of the gradients before clipping, 0-dim, on the gradients' device. Undefined if
  /// this call made no step, or neither this object nor an optimizer of mezzo has a `max_grad_norm`.
  at::Tensor grad_norm;
  /// The optimizer's step; nullopt if this call only added to the gradients.
  std::optional<StepResult> step;

  /// Whether this call updated the parameters. Waits for the device if the optimizer decides there.
  bool stepped() const { return step && step->stepped(); }
};

/// A training step in one call: autocast, the loss divided by the number of micro-batches and
/// scaled, backward, unscaling, clipping, the optimizer's step, the schedule, the scale's update,
/// and gradients dropped for the next step.
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
/// Waits for the device where GradScaler::step does, and after each step if there is a schedule.
/// @see accelerate.Accelerator.accumulate (Python). Differs: the end of the data is an argument.
class Accelerator {
 public:
  /// @throws c10::ValueError  for another dtype, no accumulation steps, or a `max_grad_norm` that is
  ///     negative or NaN; of GradScalerOptions, as GradScaler
  explicit Accelerator(torch::optim::Optimizer& optimizer, AcceleratorOptions options = {});

  /// Runs `closure` under autocast and its loss's backward outside; steps at every
  /// `gradient_accumulation_steps`-th call.
  /// @param model  a DistributedDataParallel: calls that make no step run under its `no_sync`, and its
  ///     `backward` names a rank that fails. Of other types nothing is called.
  /// @param closure  computes and returns the loss of one micro-batch: one number
  /// @param is_last  true steps in this call at any count, such as for the last batch of an epoch;
  ///     the losses are divided by `gradient_accumulation_steps` nevertheless, as in accelerate
  /// @throws  the closure's exceptions, and c10::ValueError for a loss that is not one number; the
  ///     call may be made again then. GradScaler::step's; all gradients are dropped then, and the
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

  /// To save and load its state, or to look at the scale. Disabled unless the dtype is kHalf.
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
