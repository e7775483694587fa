#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mezzo/amp/visit_tensors.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace mezzo {

class LossScale;
class GradientPass;
enum class Unscaled;

namespace detail {
class AmpScalingOptimizer;
}
namespace kernels {
struct ScaleOfGradients;
}

/// Options of GradScaler.
struct GradScalerOptions {
  /// The scale before the first overflow or growth. Within [min_scale, max_scale].
  TORCH_ARG(double, init_scale) = 65536.0;
  /// Factor for the scale after `growth_interval` steps without overflow. Finite, > 1.
  TORCH_ARG(double, growth_factor) = 2.0;
  /// Factor for the scale after an overflow. In (0, 1).
  TORCH_ARG(double, backoff_factor) = 0.5;
  /// Steps in a row without overflow before the scale grows. In [1, 2^31 - 1].
  TORCH_ARG(int64_t, growth_interval) = 2000;
  /// false: every call passes its arguments through, and `step` only steps.
  TORCH_ARG(bool, enabled) = true;
  /// true: the scale never grows or backs off by itself. Overflowed steps are skipped.
  TORCH_ARG(bool, static_scale) = false;
  /// The scale never falls below this. The default, the smallest normal float, keeps its reciprocal
  /// finite. From 1 upward, unscaling cannot overflow. This saves a second pass over the gradients
  /// on an accelerator without kernels of mezzo. >= 0.
  TORCH_ARG(double, min_scale) = std::numeric_limits<float>::min();
  /// The scale never grows above this.
  TORCH_ARG(double, max_scale) = std::numeric_limits<float>::max();
  /// true: `step` ignores an optimizer if no parameter of it has a gradient. false: this is an
  /// error.
  TORCH_ARG(bool, allow_no_gradients) = false;
  /// Number of overflows in a row before the scale backs off. Earlier overflows only skip the step
  /// and reset the growth count. Each further overflow in the row backs off again. A step without
  /// overflow resets the count. >= 1. As in Apex; in Megatron and DeepSpeed (by default) only
  /// growth of the scale resets the count.
  TORCH_ARG(int64_t, hysteresis) = 1;
  /// `step` throws if it would skip for this number of iterations in a row, and names the gradients
  /// that overflowed. 0: never. Not part of the state_dict.
  ///
  /// Free on the CPU and if `step` waits for the device anyway. If an optimizer decides on an
  /// accelerator, `step` waits once per this number of steps, and may notice the skips by the same
  /// number of steps late.
  TORCH_ARG(int64_t, max_consecutive_skips) = 0;
  /// true: computes exactly the numbers of torch.amp.GradScaler, including its defects. Ignores
  /// min_scale and max_scale; hysteresis must be 1.
  /// * The scale may fall to 0, and NaN then reach the parameters.
  /// * A gradient that overflows when it is unscaled is not found.
  /// * A growth interval below the current growth count stops all growth.
  TORCH_ARG(bool, reproduce_pytorch) = false;
  /// Reduces `flags` in place over all processes.
  using found_inf_all_reduce_t = std::function<void(at::Tensor& flags)>;
  /// For training in several processes, which must skip the same steps and have the same scale.
  /// Replaces `flags` by its maximum over all processes, in place: see
  /// `mezzo::distributed::all_reduce_found_inf`. `flags` is a float32 vector of zeros and ones on
  /// the scale's device. None: this process decides alone.
  ///
  /// Called once by `unscale_`, `step` and each evaluation of a closure, also if this process has
  /// no gradient. A `step` after `unscale_` calls it only for an optimizer of mezzo with
  /// `max_grad_norm`. So all processes must make these calls in the same order.
  ///
  /// No gradient has changed at this point: if it throws, the call may be made again.
  TORCH_ARG(found_inf_all_reduce_t, found_inf_all_reduce);
};

/// The result of one `GradScaler::step`. Waits for the device only when `stepped` is called.
class StepResult {
 public:
  /// Whether the parameters were updated. false if the scaler skipped the step, or the optimizer
  /// did, as mezzo's optimizers with `max_grad_norm` do. Waits for the device at the first call,
  /// and only after a step of an optimizer of mezzo: for other optimizers `step` has already
  /// waited.
  bool stepped() const;

  /// 1 if the step was skipped for an inf or NaN, else 0: float32, 0-dim, on the scale's device.
  /// `stepped`, `update` and the optimizer's `found_inf` agree with it. Never syncs.
  ///
  /// Undefined if nothing was checked: for an optimizer without gradients, or a disabled scaler
  /// whose optimizer does not check by itself.
  const at::Tensor& found_inf() const { return found_inf_; }

  /// The return value of the closure, or of the optimizer's step. Undefined if there is none. For a
  /// step skipped in its closure: the loss of the first evaluation.
  const at::Tensor& loss() const { return loss_; }

 private:
  friend class GradScaler;
  StepResult(std::optional<bool> stepped, at::Tensor found_inf, at::Tensor loss)
      : stepped_(stepped), found_inf_(std::move(found_inf)), loss_(std::move(loss)) {}

  mutable std::optional<bool> stepped_;
  at::Tensor found_inf_;
  at::Tensor loss_;
};

/// Scales losses so that small float16 gradients do not vanish, and skips steps whose gradients
/// overflowed. Backs the scale off after an overflow, and grows it after `growth_interval` steps
/// without overflow.
///
/// @code
/// mezzo::GradScaler scaler;
/// for (const auto& batch : batches) {
///   optimizer.zero_grad();
///   scaler.scale(forward_loss(batch)).backward();
///   scaler.unscale_(optimizer);                    // only to clip or inspect
///   mezzo::clip_grad_norm_(parameters, 1.0);       // true gradients
///   if (scaler.step(optimizer).stepped()) schedule.step();
///   scaler.update();
/// }
/// @endcode
///
/// Works with any torch::optim::Optimizer. mezzo's optimizers unscale and skip on the device. Not
/// thread-safe.
///
/// With several optimizers, call `step` for each and `update` once. Until then the scaler
/// identifies them by address. With several processes, give each a scaler. If gradients differ
/// between processes, set `found_inf_all_reduce`; `unscale_` and `step` then wait for the other
/// processes.
///
/// Warns once when it skips after 50 skipped iterations in a row. It counts only skips that it
/// knows without waiting for the device: all skips on the CPU, and skips of LibTorch's optimizers.
/// For an optimizer of mezzo on an accelerator, set `max_consecutive_skips` instead.
///
/// The scale (float32) lives on the device of the first output that `scale` sees. Gradients may be
/// on several devices, sparse (COO), and of any floating dtype. float16 needs an optimizer of
/// mezzo.
///
/// MPS and XPU may lack float64, so the reciprocal of the scale is computed there in float32, as
/// PyTorch does on MPS. This was never run.
///
/// @see torch.amp.GradScaler (Python). Same stages, numbers and state_dict; docs/guide.md, "From
///     Python to mezzo", lists the differences.
class GradScaler {
 public:
  /// Entry names and values, as in Python.
  using StateDict = std::map<std::string, c10::Scalar>;

  /// @throws c10::ValueError  for an option out of its range, enabled or not.
  explicit GradScaler(GradScalerOptions options = {});
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;
  /// A scaler that was moved from may only be assigned to or destroyed.
  GradScaler(GradScaler&&) noexcept;
  /// Replaces this scaler by the other.
  GradScaler& operator=(GradScaler&&) noexcept;
  ~GradScaler();

  /// `output` times the scale, on the output's device; differentiable. A 0-dim half loss becomes
  /// float32. Never syncs.
  at::Tensor scale(const at::Tensor& output);

  /// The same for several outputs, on any devices.
  std::vector<at::Tensor> scale(at::TensorList outputs);

  /// The same for each tensor in a structure (visit_tensors.h): tuples, maps, custom types.
  /// Undefined tensors stay undefined.
  template <TensorHolder Outputs>
    requires(!std::is_convertible_v<Outputs &&, at::TensorList>)
  std::remove_cvref_t<Outputs> scale(Outputs&& outputs) {
    auto scaled = std::forward<Outputs>(outputs);
    for_each_tensor(scaled, [this](at::Tensor& output) {
      if (output.defined()) {
        output = scale(output);
      }
    });
    return scaled;
  }

  /// Divides the gradients of `optimizer` by the scale, to clip or inspect them before `step`.
  /// Records whether any gradient was, or became, inf or NaN. Call it once per step, after the last
  /// backward.
  ///
  /// Sparse float16 gradients are replaced by coalesced ones. With float32 master weights, the
  /// unscaled gradients are on the masters (`MasterWeights::parameters`). Never syncs if the scale
  /// and the gradients are on one device.
  /// @throws c10::Error  before the first `scale`, twice, or after `step`
  /// @throws c10::ValueError  for a float16 or non-floating gradient, with the name of the
  ///     parameter; no gradient has changed then
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Unscales if `unscale_` has not, then steps unless an inf or NaN was found. Waits for the
  /// device to decide, except with mezzo's optimizers, which decide on the device. With
  /// `found_inf_all_reduce`, an optimizer without gradients also steps if it has gradients in
  /// another process.
  /// @throws c10::Error  before the first `scale`, or if called twice
  /// @throws c10::Error  if no parameter has a gradient; the optimizer's stage has not changed then
  /// @throws c10::Error  for the `max_consecutive_skips`-th skip in a row. Parameters, optimizer
  ///     and scale have not changed then, and the gradients can be inspected.
  StepResult step(torch::optim::Optimizer& optimizer);

  /// A step whose optimizer evaluates `closure`, as LBFGS does several times. As in Python, the
  /// closure zeroes the gradients, runs forward and `scaler.scale(loss).backward()`, and returns
  /// the loss. After each evaluation the gradients are unscaled and checked before the optimizer
  /// sees them.
  ///
  /// An overflow in the first evaluation skips the step. An overflow in a later evaluation also
  /// counts as a skip: parameters and optimizer state are restored.
  ///
  /// Keeps a copy of the parameters during the step, and syncs at each evaluation. An optimizer of
  /// mezzo gets one evaluation, no copy and no sync.
  /// @throws c10::Error  as above, or after `unscale_`
  StepResult step(torch::optim::Optimizer& optimizer, const torch::optim::Optimizer::LossClosure& closure);

  /// For an optimizer whose `step` takes custom arguments: unscales, checks, then calls
  /// `optimizer.step(arguments...)`. Syncs.
  template <class Optimizer, class... Arguments>
    requires(sizeof...(Arguments) > 0) && std::derived_from<Optimizer, torch::optim::Optimizer> &&
            (sizeof...(Arguments) > 1 ||
             (!std::is_convertible_v<Arguments &&, torch::optim::Optimizer::LossClosure> && ...))
  StepResult step(Optimizer& optimizer, Arguments&&... arguments) {
    return step_by(optimizer, [&]() -> at::Tensor {
      using Returned = decltype(optimizer.step(std::forward<Arguments>(arguments)...));
      if constexpr (std::is_convertible_v<Returned, at::Tensor>) {
        return optimizer.step(std::forward<Arguments>(arguments)...);
      } else {
        optimizer.step(std::forward<Arguments>(arguments)...);
        return {};
      }
    });
  }

  /// After `step`, allows another `step` of this optimizer before `update`: for callers that update
  /// the parameters themselves after `step`, if that update failed. Gradients stay as `step` left
  /// them.
  void undo_step(const torch::optim::Optimizer& optimizer);

  /// Ends the iteration: backs off or grows by the overflows found since the last `update`, and
  /// resets the stage of every optimizer. Never syncs if the scale and the gradients are on one
  /// device.
  /// @throws c10::Error  before the first `scale`, or if nothing was checked
  void update();

  /// Ends the iteration with this scale; the growth count stays. Never syncs.
  /// @throws c10::ValueError  if not finite, positive and in [min_scale, max_scale].
  void update(double new_scale);

  /// The same with a 1-element tensor on the CPU, or on the device type of the scale. On a device
  /// it is not read but clamped to [min_scale, max_scale].
  void update(const at::Tensor& new_scale);

  /// The current scale; `init_scale` before the first `scale`, 1 if disabled. Syncs.
  double get_scale() const;
  /// Steps without overflow since the scale last changed; 0 if disabled. Syncs.
  int64_t get_growth_tracker() const;
  /// The scale on its device, for computations; undefined before the first `scale`. Never syncs.
  const at::Tensor& scale_tensor() const;
  /// The number of skipped iterations that `update()` ended, since the first `scale`; 0 if
  /// disabled. Not part of the state_dict. Syncs.
  int64_t get_skipped_steps() const;

  /// Whether the scaler scales at all. Never syncs.
  bool is_enabled() const { return options_.enabled(); }
  /// The growth factor in use. Never syncs.
  double get_growth_factor() const;
  /// The backoff factor in use. Never syncs.
  double get_backoff_factor() const;
  /// The growth interval in use, in steps. Never syncs.
  int64_t get_growth_interval() const;
  /// Checked like the options; takes effect at the next `update`. Never syncs.
  void set_growth_factor(double growth_factor);
  /// As `set_growth_factor`.
  void set_backoff_factor(double backoff_factor);
  /// As `set_growth_factor`.
  void set_growth_interval(int64_t growth_interval);

  /// PyTorch's five entries: scale, growth_factor, backoff_factor, growth_interval,
  /// _growth_tracker. With hysteresis also _hysteresis_tracker, which PyTorch ignores. Empty if
  /// disabled. Syncs. Save it after `update`: it does not contain stages and found infs.
  StateDict state_dict() const;

  /// Loads a state saved by mezzo or PyTorch; does nothing if disabled. Never syncs. If the state
  /// has no hysteresis count, the count starts again.
  /// @throws c10::Error  for an empty state, from a disabled scaler
  /// @throws c10::ValueError  for a missing entry, or an entry out of its range
  void load_state_dict(const StateDict& state_dict);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  struct OptimizerState {
    Stage stage = Stage::kReady;
    at::Tensor found_inf;  // 0 or 1, on the scale's device; undefined: nothing checked
    Stage stage_before_step = Stage::kReady;
  };

  using Optimizer = torch::optim::Optimizer;
  StepResult step_by(Optimizer& optimizer, const std::function<at::Tensor()>& take_step);
  StepResult step_on_device(Optimizer& optimizer,
                            detail::AmpScalingOptimizer& amp,
                            const OptimizerState& state,
                            at::Tensor loss);
  StepResult updated(Optimizer& optimizer, at::Tensor found_inf, at::Tensor loss);
  StepResult finish(Optimizer& optimizer, at::Tensor found_inf, std::optional<bool> stepped, at::Tensor loss);
  at::Tensor evaluate(Optimizer& optimizer, const Optimizer::LossClosure& closure);
  OptimizerState state_of(const Optimizer& optimizer) const;
  GradientPass gradients_of(Optimizer& optimizer, Unscaled unscaled) const;
  kernels::ScaleOfGradients scale_of_gradients() const;
  at::Tensor unscale_gradients(Optimizer& optimizer) const;
  at::Tensor check_scaled_gradients(Optimizer& optimizer, detail::AmpScalingOptimizer& amp) const;
  at::Tensor all_reduced(const at::Tensor& found_inf) const;
  void check_has_gradients(const Optimizer& optimizer, const at::Tensor& found_inf) const;
  void check_scale_exists(const char* function) const;
  void check_not_stepped(const Optimizer& optimizer, Stage stage) const;
  void check_not_stuck(Optimizer& optimizer, const at::Tensor& found_inf);
  void note_skip(const at::Tensor& found_inf, std::optional<bool> stepped);
  void end_iteration();

  GradScalerOptions options_;
  std::unique_ptr<LossScale> loss_scale_;
  int64_t updates_since_skips_were_read_ = 0;
  int64_t skips_seen_in_a_row_ = 0;  // that the host knows of
  bool saw_skip_ = false, warned_of_skips_ = false;
  std::unordered_map<const void*, OptimizerState> optimizer_states_;
};

/// For `torch::save`: writes the entries of the state_dict.
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const GradScaler& scaler);
/// For `torch::load`: reads the entries of the state_dict, with the errors of `load_state_dict`.
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, GradScaler& scaler);

}  // namespace mezzo
