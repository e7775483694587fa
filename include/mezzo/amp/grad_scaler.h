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

struct GradScalerOptions {
  /// The scale before the first overflow or growth. Within [min_scale, max_scale].
  TORCH_ARG(double, init_scale) = 65536.0;
  /// What the scale is multiplied by after `growth_interval` steps without overflow. Finite, > 1.
  TORCH_ARG(double, growth_factor) = 2.0;
  /// What the scale is multiplied by after an overflow. In (0, 1).
  TORCH_ARG(double, backoff_factor) = 0.5;
  /// Steps in a row without overflow before the scale grows. In [1, 2^31 - 1].
  TORCH_ARG(int64_t, growth_interval) = 2000;
  /// false: every call passes its arguments through and `step` simply steps.
  TORCH_ARG(bool, enabled) = true;
  /// true: the scale never grows or backs off by itself. Overflowed steps are skipped.
  TORCH_ARG(bool, static_scale) = false;
  /// The scale never falls below this. The default, the smallest normal float, keeps its reciprocal
  /// finite. From 1 upward unscaling cannot overflow. This saves a second pass over the gradients on
  /// an accelerator for which mezzo has no kernels. >= 0.
  TORCH_ARG(double, min_scale) = std::numeric_limits<float>::min();
  /// The scale never grows above this.
  TORCH_ARG(double, max_scale) = std::numeric_limits<float>::max();
  /// true: `step` passes over an optimizer none of whose parameters has a gradient,
  /// which is an error otherwise.
  TORCH_ARG(bool, allow_no_gradients) = false;
  /// Overflows in a row before the scale backs off; until then they only skip the step and end the
  /// count of good ones. Each further one in that row backs off again; a step without overflow
  /// starts afresh. >= 1. As in Apex; Megatron and DeepSpeed (by default) start afresh only when
  /// the scale grows.
  TORCH_ARG(int64_t, hysteresis) = 1;
  /// `step` throws if it would skip for this number of iterations in a row, and names the gradients
  /// that overflowed. 0: never. Costs nothing on the CPU and if `step` waits for the device anyway.
  /// For an optimizer that steps on an accelerator by itself, `step` waits once in this number of
  /// steps, and may notice as many steps late. Not part of the state_dict.
  TORCH_ARG(int64_t, max_consecutive_skips) = 0;
  /// true: computes the very numbers of torch.amp.GradScaler, defects included: the scale may fall
  /// to 0 and NaN then reach the parameters; a gradient that overflows by being unscaled is not
  /// found; a growth interval set below the count of good steps stops all growth. Sets min_scale
  /// and max_scale aside; hysteresis must be 1.
  TORCH_ARG(bool, reproduce_pytorch) = false;
  using found_inf_all_reduce_t = std::function<void(at::Tensor& flags)>;
  /// For training in several processes, where all must skip the same steps and have the same scale:
  /// replaces `flags`, a float32 vector of zeros and ones on the scale's device, by its maximum
  /// over all processes, in place (`mezzo::distributed::all_reduce_found_inf`). Called once by
  /// `unscale_`, `step` and each evaluation of a closure, also if this process has no gradient.
  /// A `step` after `unscale_` calls it only for one of mezzo's optimizers with `max_grad_norm`. So
  /// every process must make the same of these calls in the same order. No gradient has changed
  /// yet: if it throws, the call may be made again. None: this process decides alone.
  TORCH_ARG(found_inf_all_reduce_t, found_inf_all_reduce);
};

/// What became of one `GradScaler::step`. Asks the device nothing until you ask it.
class StepResult {
 public:
  /// Whether the parameters were updated; false if the scaler skipped the step, or the optimizer
  /// did, as mezzo's with `max_grad_norm` do. Waits for the device the first time, and only after
  /// a step of one of mezzo's optimizers: for others `step` has waited already.
  bool stepped() const;

  /// 1 if the step was skipped for an inf or NaN, else 0: float32, 0-dim, on the scale's device;
  /// `stepped`, `update` and the optimizer's own `found_inf` agree with it. Undefined if nothing was
  /// checked: an optimizer without gradients, or a disabled scaler whose optimizer does not check by
  /// itself. Never syncs.
  const at::Tensor& found_inf() const { return found_inf_; }

  /// What the closure, or the optimizer's own step, returned; undefined if nothing. For a step
  /// skipped in its closure: the first evaluation's loss.
  const at::Tensor& loss() const { return loss_; }

 private:
  friend class GradScaler;
  StepResult(std::optional<bool> stepped, at::Tensor found_inf, at::Tensor loss)
      : stepped_(stepped), found_inf_(std::move(found_inf)), loss_(std::move(loss)) {}

  mutable std::optional<bool> stepped_;
  at::Tensor found_inf_;
  at::Tensor loss_;
};

/// Scales losses so that small float16 gradients do not vanish, skips the steps whose gradients
/// overflowed, and adapts the scale: backs off after an overflow, grows after `growth_interval`
/// steps without one.
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
/// Drives any torch::optim::Optimizer. mezzo's own optimizers unscale and skip on the device.
///
/// Several optimizers: `step` for each, `update` once; the scaler knows them by their address until
/// then. Several processes: a scaler each, with GradScalerOptions' `found_inf_all_reduce` if
/// gradients differ between them; `unscale_` and `step` then wait for the others. Not thread-safe.
///
/// Warns once if it skips after 50 iterations in a row were skipped. It counts only skips that it
/// knows of without waiting for the device: all of them on the CPU, and those of LibTorch's
/// optimizers. One of mezzo's on an accelerator is never asked: set `max_consecutive_skips` for it.
///
/// The scale (float32) lives on the device of the first output that `scale` sees. Gradients may be
/// on several devices, sparse (COO), and of any floating dtype; float16 only for mezzo's
/// optimizers. On MPS and XPU, which may have no float64, the reciprocal of the scale is computed in
/// float32, as PyTorch does on MPS; this was never run.
///
/// @see torch.amp.GradScaler (Python). Same stages, numbers and state_dict; docs/guide.md, "From
///     Python to mezzo", lists what differs.
class GradScaler {
 public:
  using StateDict = std::map<std::string, c10::Scalar>;

  /// @throws c10::ValueError  for an option out of its range, enabled or not.
  explicit GradScaler(GradScalerOptions options = {});
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;
  /// One that was moved from may be assigned to or destroyed, and nothing else.
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;
  ~GradScaler();

  /// `output` times the scale, on the output's device; differentiable. A 0-dim half loss becomes
  /// float32. Never syncs.
  at::Tensor scale(const at::Tensor& output);

  /// Each of several outputs, on whatever devices, times the scale.
  std::vector<at::Tensor> scale(at::TensorList outputs);

  /// The same of each tensor in a structure (visit_tensors.h): tuples, maps, types of your
  /// own; undefined ones stay so.
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

  /// Divides the gradients of `optimizer` by the scale, to clip or inspect them before `step`, and
  /// remembers whether any was, or became, inf or NaN. Call once per step, after the last backward.
  /// Sparse float16 gradients are replaced by coalesced ones; of float32 master weights, the
  /// unscaled gradients are the masters' (`MasterWeights::parameters`). Never syncs if the scale
  /// and the gradients live on one device.
  /// @throws c10::Error  before the first `scale`, twice, or after `step`
  /// @throws c10::ValueError  for a float16 or non-floating gradient, naming the parameter; no
  ///     gradient has changed then
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Unscales if `unscale_` has not, then steps unless an inf or NaN was found. Waits for the
  /// device to decide, except for mezzo's optimizers, which decide there. With
  /// `found_inf_all_reduce`, also steps an optimizer without gradients if that of another process
  /// has some.
  /// @throws c10::Error  before the first `scale`; twice; if no parameter has a gradient, which
  ///     leaves the optimizer's stage as it was; or for the `max_consecutive_skips`-th skip in a
  ///     row, which leaves parameters, optimizer and scale as they were, and the gradients there to
  ///     look at
  StepResult step(torch::optim::Optimizer& optimizer);

  /// A step whose optimizer evaluates `closure`, as LBFGS does several times. The closure zeroes
  /// the gradients, runs forward and `scaler.scale(loss).backward()`, and returns the loss, as in
  /// Python; each time, the gradients are unscaled and checked before the optimizer sees them. An
  /// overflow in the first evaluation skips the step; one in a later evaluation counts as skipped,
  /// too, and puts parameters and optimizer state back to where they were.
  ///
  /// Keeps a copy of the parameters meanwhile, and syncs at each evaluation. One of mezzo's
  /// optimizers gets one evaluation, no copy, no sync.
  /// @throws c10::Error  as above, or after `unscale_`
  StepResult step(torch::optim::Optimizer& optimizer, const torch::optim::Optimizer::LossClosure& closure);

  /// For an optimizer whose `step` takes arguments of its own: unscales, checks, then calls
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

  /// Ends the iteration: backs off or grows by what was found since the last `update`, and makes
  /// every optimizer ready. Never syncs if the scale and the gradients live on one device.
  /// @throws c10::Error  before the first `scale`, or if nothing was checked
  void update();

  /// Ends the iteration with this scale; the growth count stays. Never syncs.
  /// @throws c10::ValueError  if not finite, positive and in [min_scale, max_scale].
  void update(double new_scale);

  /// The same with a 1-element tensor: on the CPU, or on the device type of the scale, where it is
  /// not read but clamped to [min_scale, max_scale].
  void update(const at::Tensor& new_scale);

  /// The current scale; `init_scale` before the first `scale`, 1 if disabled. Syncs.
  double get_scale() const;
  /// Steps without overflow since the scale last changed; 0 if disabled. Syncs.
  int64_t get_growth_tracker() const;
  /// The scale where it lives, to compute with; undefined before the first `scale`. Never syncs.
  const at::Tensor& scale_tensor() const;
  /// Iterations that `update()` ended and that were skipped, since the first `scale`; 0 if
  /// disabled. Not part of the state_dict. Syncs.
  int64_t get_skipped_steps() const;

  bool is_enabled() const { return options_.enabled(); }
  double get_growth_factor() const;
  double get_backoff_factor() const;
  int64_t get_growth_interval() const;
  /// Checked like the options; in force from the next `update`. Never sync.
  void set_growth_factor(double growth_factor);
  void set_backoff_factor(double backoff_factor);
  void set_growth_interval(int64_t growth_interval);

  /// PyTorch's five entries: scale, growth_factor, backoff_factor, growth_interval,
  /// _growth_tracker; with hysteresis, _hysteresis_tracker too, which PyTorch passes over. Empty if
  /// disabled. Syncs. Save it after `update`: stages and found infs are not part of it.
  StateDict state_dict() const;

  /// Takes on a state saved here or by PyTorch; does nothing if disabled. Never syncs. Hysteresis
  /// starts afresh where the state knows none.
  /// @throws c10::Error  for an empty state, from a disabled scaler
  /// @throws c10::ValueError  for a missing entry or one out of its range
  void load_state_dict(const StateDict& state_dict);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  struct OptimizerState {
    Stage stage = Stage::kReady;
    at::Tensor found_inf;  // 0 or 1, on the scale's device; undefined: nothing checked
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

/// For `torch::save` and `torch::load`: the entries of the state_dict, with the same errors.
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const GradScaler& scaler);
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, GradScaler& scaler);

}  // namespace mezzo
