#include "mezzo/amp/grad_scaler.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "amp/gradient_groups.h"
#include "mezzo/amp/overflow_report.h"
#include "optim/inverse_of.h"

namespace mezzo {
namespace {

constexpr const char* kHysteresisTracker = "_hysteresis_tracker";

/// Leaves an optimizer's step from within its closure; never leaves GradScaler::step.
struct ClosureOverflow {};

/// A 0-dim tensor and its copies on other devices, made when first asked for.
class DeviceCopies {
 public:
  explicit DeviceCopies(at::Tensor original) { copies_.push_back(std::move(original)); }

  at::Tensor& on(c10::Device device) {
    for (at::Tensor& copy : copies_) {
      if (copy.device() == device) {
        return copy;
      }
    }
    return copies_.emplace_back(copies_.front().to(device, /*non_blocking=*/true));
  }

  /// The largest of all copies, on the original's device.
  at::Tensor maximum() const {
    at::Tensor largest = copies_.front();
    for (size_t i = 1; i < copies_.size(); ++i) {
      largest = at::maximum(largest, copies_[i].to(largest.device(), /*non_blocking=*/true));
    }
    return largest;
  }

 private:
  std::vector<at::Tensor> copies_;
};

void check_gradient(const AmpOptimizer& optimizer, size_t index, const at::Tensor& gradient, bool half_allowed) {
  const auto dtype = gradient.scalar_type();
  TORCH_CHECK_VALUE(at::isFloatingType(dtype), "GradScaler: ", optimizer.parameter_name(index), " of ",
                    optimizer.name(), " has a gradient of dtype ", dtype, " and shape ", gradient.sizes(),
                    "; only floating-point gradients can be unscaled. Give that parameter an optimizer that the scaler "
                    "does not see.");
  TORCH_CHECK_VALUE(half_allowed || dtype != at::kHalf, "GradScaler: ", optimizer.parameter_name(index), " of ",
                    optimizer.name(), " has a float16 gradient of shape ", gradient.sizes(),
                    ", too coarse to be unscaled in place. Keep parameters in float32 and run forward under "
                    "AutocastGuard, or use an optimizer with float32 master weights.");
}

/// The gradients of `optimizer` as kernels want them; the values, where sparse.
GradientGroups collect_gradients(AmpOptimizer& optimizer, bool half_allowed) {
  size_t index = 0;
  optimizer.visit_parameters([&](at::Tensor& parameter) {
    if (parameter.grad().defined()) {
      check_gradient(optimizer, index, parameter.grad(), half_allowed);
    }
    ++index;
  });
  GradientGroups groups;
  optimizer.visit_parameters([&](at::Tensor& parameter) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) {
      return;
    }
    if (!gradient.is_sparse()) {
      groups.add(gradient);
      return;
    }
    if (gradient.scalar_type() == at::kHalf) {
      gradient = gradient.coalesce();  // sums entries of equal index, which may overflow: check what comes out
    }
    groups.add(gradient._values());
  });
  return groups;
}

/// The largest magnitudes in `group` times `inv_scale`, in float32 or better: finite iff all unscaled gradients are.
at::Tensor unscaled_magnitudes(const GradientGroup& group, const at::Tensor& inv_scale) {
  std::vector<at::Tensor> non_empty;
  for (const at::Tensor& gradient : group.gradients) {
    if (gradient.numel() > 0) {
      non_empty.push_back(gradient);
    }
  }
  if (non_empty.empty()) {
    return at::zeros({1}, inv_scale.options());
  }
  const auto norms = at::stack(at::_foreach_norm(non_empty, std::numeric_limits<double>::infinity()));
  return norms.to(group.dtype == at::kDouble ? at::kDouble : at::kFloat) * inv_scale;
}

std::vector<at::Tensor> clone_parameters(AmpOptimizer& optimizer) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> clones;
  optimizer.visit_parameters([&](at::Tensor& parameter) { clones.push_back(parameter.detach().clone()); });
  return clones;
}

void restore_parameters(AmpOptimizer& optimizer, const std::vector<at::Tensor>& clones) {
  const c10::NoGradGuard no_grad;
  auto clone = clones.begin();
  optimizer.visit_parameters([&](at::Tensor& parameter) { parameter.copy_(*clone++); });
}

void check_growth_factor(double growth_factor) {
  TORCH_CHECK_VALUE(std::isfinite(growth_factor) && growth_factor > 1.0,
                    "GradScaler: growth_factor must be finite and > 1, got ", growth_factor, ".");
}

void check_backoff_factor(double backoff_factor) {
  TORCH_CHECK_VALUE(backoff_factor > 0.0 && backoff_factor < 1.0,
                    "GradScaler: backoff_factor must be between 0 and 1, got ", backoff_factor,
                    ". For a scale that stays as it is, use GradScalerOptions().static_scale(true).");
}

void check_growth_interval(int64_t growth_interval) {
  TORCH_CHECK_VALUE(growth_interval >= 1 && growth_interval <= std::numeric_limits<int32_t>::max(),
                    "GradScaler: growth_interval must be between 1 and 2147483647, got ", growth_interval,
                    ". For a scale that stays as it is, use GradScalerOptions().static_scale(true).");
}

void check_guard_rails(const GradScalerOptions& options) {
  constexpr auto most = std::numeric_limits<int32_t>::max();
  TORCH_CHECK_VALUE(options.hysteresis() >= 1 && options.hysteresis() <= most,
                    "GradScaler: hysteresis must be between 1, which backs off at every overflow, and ", most, ", got ",
                    options.hysteresis(), ".");
  TORCH_CHECK_VALUE(options.hysteresis() == 1 || !options.reproduce_pytorch(), "GradScaler: hysteresis is ",
                    options.hysteresis(), ", but PyTorch has none. Set it to 1, or reproduce_pytorch to false.");
  TORCH_CHECK_VALUE(options.max_consecutive_skips() >= 0 && options.max_consecutive_skips() <= most,
                    "GradScaler: max_consecutive_skips must be between 0, which allows any number, and ", most,
                    ", got ", options.max_consecutive_skips(), ".");
}

const c10::Scalar& entry(const GradScaler::StateDict& state_dict, const char* key) {
  const auto found = state_dict.find(key);
  TORCH_CHECK_VALUE(found != state_dict.end(), "GradScaler: the state_dict has no entry \"", key,
                    "\". Pass one that GradScaler's state_dict() returned.");
  return found->second;
}

int64_t integer_entry(const GradScaler::StateDict& state_dict, const char* key) {
  const c10::Scalar& value = entry(state_dict, key);
  TORCH_CHECK_VALUE(value.isIntegral(/*includeBool=*/false), "GradScaler: entry \"", key,
                    "\" of the state_dict must be an integer, got ", value, ".");
  return value.toLong();
}

double real_entry(const GradScaler::StateDict& state_dict, const char* key) {
  const c10::Scalar& value = entry(state_dict, key);
  TORCH_CHECK_VALUE(value.isFloatingPoint() || value.isIntegral(/*includeBool=*/false), "GradScaler: entry \"", key,
                    "\" of the state_dict must be a real number, got ", value, ".");
  return value.toDouble();
}

}  // namespace

bool StepResult::stepped() const {
  if (!stepped_) {
    stepped_ = found_inf_.item<float>() == 0.0f;
  }
  return *stepped_;
}

GradScaler::GradScaler(GradScalerOptions options)
    : options_(std::move(options)), init_hysteresis_tracker_(options_.hysteresis()) {
  TORCH_CHECK_VALUE(options_.min_scale() >= 0.0 && options_.min_scale() <= options_.max_scale() &&
                        options_.max_scale() <= std::numeric_limits<float>::max(),
                    "GradScaler: min_scale and max_scale must satisfy 0 <= min_scale <= max_scale <= ",
                    std::numeric_limits<float>::max(), ", got ", options_.min_scale(), " and ", options_.max_scale(),
                    ".");
  checked_scale("init_scale", options_.init_scale());
  check_growth_factor(options_.growth_factor());
  check_backoff_factor(options_.backoff_factor());
  check_growth_interval(options_.growth_interval());
  check_guard_rails(options_);
}

double GradScaler::checked_scale(const char* what, double value) const {
  const auto as_float = static_cast<float>(value);
  TORCH_CHECK_VALUE(std::isfinite(as_float) && as_float > 0.0f, "GradScaler: ", what,
                    " must be positive and finite in float32, got ", value, ".");
  TORCH_CHECK_VALUE(options_.reproduce_pytorch() || (value >= options_.min_scale() && value <= options_.max_scale()),
                    "GradScaler: ", what, " must be between min_scale ", options_.min_scale(), " and max_scale ",
                    options_.max_scale(), ", got ", value, ".");
  return value;
}

void GradScaler::create_scale(c10::Device device) {
  scale_ = at::full({}, options_.init_scale(), at::TensorOptions(device).dtype(at::kFloat));
  const auto count = at::TensorOptions(device).dtype(at::kInt);
  growth_tracker_ = at::full({}, init_growth_tracker_, count);
  hysteresis_tracker_ = at::full({}, init_hysteresis_tracker_, count);
  consecutive_skips_ = at::zeros({}, count);
}

at::Tensor GradScaler::scale(const at::Tensor& output) {
  if (!is_enabled()) {
    return output;
  }
  TORCH_CHECK_VALUE(output.defined(), "GradScaler: scale() got an undefined tensor. Pass the loss, or model outputs.");
  if (!scale_.defined()) {
    create_scale(output.device());
  }
  return output * scale_.to(output.device(), /*non_blocking=*/true);
}

std::vector<at::Tensor> GradScaler::scale(at::TensorList outputs) {
  if (!is_enabled() || outputs.empty()) {
    return outputs.vec();
  }
  for (const at::Tensor& output : outputs) {
    TORCH_CHECK_VALUE(output.defined(),
                      "GradScaler: scale() got an undefined tensor in a list. Pass losses, or model outputs.");
  }
  if (!scale_.defined()) {
    create_scale(outputs.front().device());
  }
  DeviceCopies scale(scale_);
  std::vector<at::Tensor> scaled;
  scaled.reserve(outputs.size());
  for (const at::Tensor& output : outputs) {
    scaled.push_back(output * scale.on(output.device()));
  }
  return scaled;
}

bool GradScaler::scale_may_be_below_one() const {
  if (scale_.is_cpu()) {
    return !(scale_.item<float>() >= 1.0f);  // nothing to wait for on the CPU
  }
  return options_.min_scale() < 1.0;
}

/// The verdict of all processes, where this one came to `found_inf`. Undefined if none has gradients.
at::Tensor GradScaler::agreed(const at::Tensor& found_inf) const {
  if (!options_.agree()) {
    return found_inf;
  }
  const c10::NoGradGuard no_grad;
  const bool has_gradients = found_inf.defined();
  const auto no = at::zeros({}, scale_.options());
  auto flags = has_gradients ? at::stack({found_inf, at::ones({}, scale_.options())}) : at::stack({no, no});
  options_.agree()(flags);
  if (!has_gradients && flags[1].item<float>() == 0.0f) {  // waits for the device in this rare case alone
    return {};
  }
  return flags[0];
}

/// Checks, and on request unscales, all gradients. Undefined if there are none.
at::Tensor GradScaler::check_gradients(AmpOptimizer& optimizer, Unscale unscale) const {
  const c10::NoGradGuard no_grad;
  auto groups = collect_gradients(optimizer, unscale == Unscale::kNo || optimizer.allows_half_gradients());
  if (groups.empty()) {
    return agreed({});
  }
  const auto inv_scale = inverse_of(scale_);
  DeviceCopies one(at::ones({}, scale_.options()));
  DeviceCopies found_inf(at::zeros({}, scale_.options()));
  const auto check = [&](at::TensorList tensors, const at::Tensor& factor) {
    at::_amp_foreach_non_finite_check_and_unscale_(tensors, found_inf.on(factor.device()), factor);
  };

  if (!options_.reproduce_pytorch()) {
    groups.add(scale_ * inv_scale);  // 1, or non-finite if either is: then no gradient means anything
  }
  DeviceCopies factor(unscale == Unscale::kInPlace ? inv_scale : one.on(scale_.device()));
  for (const auto& group : groups) {
    check(group.gradients, factor.on(group.device));
  }

  if (!options_.reproduce_pytorch() && scale_may_be_below_one()) {  // unscaling multiplies: look at what comes out
    DeviceCopies inv_scales(inv_scale);
    for (const auto& group : groups) {
      if (unscale == Unscale::kInPlace) {
        check(group.gradients, one.on(group.device));
      } else {
        check(unscaled_magnitudes(group, inv_scales.on(group.device)), one.on(group.device));
      }
    }
  }
  return agreed(found_inf.maximum());  // not the sum: fused kernels skip on exactly 1
}

void GradScaler::check_scale_exists(const char* function) const {
  TORCH_CHECK(scale_.defined(), "GradScaler: ", function,
              " was called before scale(). Run backward on scaler.scale(loss) first.");
}

void GradScaler::check_not_stepped(const AmpOptimizer& optimizer, Stage stage) const {
  TORCH_CHECK(stage != Stage::kStepped, "GradScaler: step() has already been called on ", optimizer.name(),
              " since the last update(). Call update() once per iteration, after the step() of every optimizer.");
}

void GradScaler::check_has_gradients(AmpOptimizer& optimizer, const at::Tensor& found_inf) const {
  if (found_inf.defined() || options_.allow_no_gradients()) {
    return;
  }
  size_t parameters = 0;
  optimizer.visit_parameters([&](at::Tensor&) { ++parameters; });
  TORCH_CHECK(false, "GradScaler: no gradient of ", optimizer.name(), " was checked: none of its ", parameters,
              " parameters had one. Run backward on scaler.scale(loss) before unscale_() or step(), or set "
              "GradScalerOptions().allow_no_gradients(true) to pass over such optimizers.");
}

GradScaler::OptimizerState GradScaler::state_of(const AmpOptimizer& optimizer) const {
  const auto found = optimizer_states_.find(optimizer.identity());
  return found == optimizer_states_.end() ? OptimizerState{} : found->second;
}

void GradScaler::unscale_(AmpOptimizerRef optimizer) {
  if (!is_enabled()) {
    return;
  }
  check_scale_exists("unscale_()");
  const auto stage = state_of(*optimizer).stage;
  TORCH_CHECK(stage != Stage::kUnscaled, "GradScaler: unscale_() has already been called on ", optimizer->name(),
              " since the last update(). Call it once per step, after the last backward.");
  TORCH_CHECK(stage != Stage::kStepped, "GradScaler: unscale_() was called on ", optimizer->name(),
              " after step(). Call it before step(), and update() at the end of the iteration.");
  optimizer_states_[optimizer->identity()] = {Stage::kUnscaled, check_gradients(*optimizer, Unscale::kInPlace)};
}

StepResult GradScaler::step(AmpOptimizerRef optimizer) {
  if (is_enabled() && optimizer->applies_scale_itself()) {
    check_scale_exists("step()");
    const auto state = state_of(*optimizer);
    check_not_stepped(*optimizer, state.stage);
    return step_on_device(*optimizer, state, /*loss=*/{});
  }
  return step_by(*optimizer, [&] { return optimizer->step(nullptr); });
}

/// The step of an optimizer that applies the scale itself: no host sync anywhere.
StepResult GradScaler::step_on_device(AmpOptimizer& optimizer, OptimizerState state, at::Tensor loss) {
  std::optional<at::Tensor> grad_scale;
  if (state.stage == Stage::kReady) {
    const auto checked = options_.reproduce_pytorch() ? std::nullopt : optimizer.check_gradients(scale_);
    state.found_inf = checked ? agreed(*checked) : check_gradients(optimizer, Unscale::kNo);
    grad_scale = scale_;
  }
  check_has_gradients(optimizer, state.found_inf);
  if (!state.found_inf.defined()) {
    optimizer_states_[optimizer.identity()] = {Stage::kStepped, {}};
    return {/*stepped=*/false, {}, std::move(loss)};
  }
  check_not_stuck(optimizer, state.found_inf);
  auto returned = optimizer.step_scaled(grad_scale, state.found_inf);
  optimizer_states_[optimizer.identity()] = {Stage::kStepped, state.found_inf};
  return {/*stepped=*/std::nullopt, state.found_inf, loss.defined() ? std::move(loss) : std::move(returned)};
}

/// The step of any other: unscale, wait for the verdict, `take_step`.
StepResult GradScaler::step_by(AmpOptimizerRef optimizer, const std::function<at::Tensor()>& take_step) {
  if (!is_enabled()) {
    return {/*stepped=*/true, {}, take_step()};
  }
  check_scale_exists("step()");
  auto state = state_of(*optimizer);
  check_not_stepped(*optimizer, state.stage);
  if (state.stage == Stage::kReady) {
    state.found_inf = check_gradients(*optimizer, Unscale::kInPlace);
  }
  check_has_gradients(*optimizer, state.found_inf);
  // Should the step throw, the gradients are unscaled all the same.
  optimizer_states_[optimizer->identity()] = {Stage::kUnscaled, state.found_inf};
  const bool take = state.found_inf.defined() && state.found_inf.item<float>() == 0.0f;
  if (!take && state.found_inf.defined()) {
    check_not_stuck(*optimizer, state.found_inf);
  }
  auto loss = take ? take_step() : at::Tensor();
  optimizer_states_[optimizer->identity()].stage = Stage::kStepped;
  return {take, std::move(state.found_inf), std::move(loss)};
}

/// Runs the closure once, then unscales and checks; the verdict is in the optimizer's state.
at::Tensor GradScaler::evaluate(AmpOptimizer& optimizer, const AmpOptimizer::Closure& closure) {
  auto loss = [&] {
    const c10::AutoGradMode enable_grad(true);
    return closure();
  }();
  TORCH_CHECK(scale_.defined(),
              "GradScaler: the closure given to step() did not call scale(). Let it run backward on "
              "scaler.scale(loss) and return the loss.");
  if (!optimizer.applies_scale_itself()) {
    auto found_inf = check_gradients(optimizer, Unscale::kInPlace);
    check_has_gradients(optimizer, found_inf);
    optimizer_states_[optimizer.identity()].found_inf = std::move(found_inf);
  }
  return loss;
}

StepResult GradScaler::step(AmpOptimizerRef optimizer, const AmpOptimizer::Closure& closure) {
  if (!closure) {
    return step(*optimizer);
  }
  if (!is_enabled()) {
    return {/*stepped=*/true, {}, optimizer->step(closure)};
  }
  const auto stage = state_of(*optimizer).stage;
  check_not_stepped(*optimizer, stage);
  TORCH_CHECK(stage != Stage::kUnscaled, "GradScaler: step() with a closure was called on ", optimizer->name(),
              " after unscale_(). Leave unscale_() out: every gradient that the closure computes is unscaled for you.");

  const auto first_loss = evaluate(*optimizer, closure);
  if (optimizer->applies_scale_itself()) {
    return step_on_device(*optimizer, {}, first_loss);
  }
  const auto overflowed = [&] {
    const auto found_inf = state_of(*optimizer).found_inf;
    return !found_inf.defined() || found_inf.item<float>() != 0.0f;
  };
  const auto result = [&](bool stepped, at::Tensor loss) {
    auto& state = optimizer_states_[optimizer->identity()];
    state.stage = Stage::kStepped;
    return StepResult(stepped, state.found_inf, std::move(loss));
  };
  if (overflowed()) {
    if (const auto found_inf = state_of(*optimizer).found_inf; found_inf.defined()) {
      check_not_stuck(*optimizer, found_inf);
    }
    return result(/*stepped=*/false, first_loss);
  }

  const auto parameters = clone_parameters(*optimizer);
  const auto restore_state = optimizer->save_state();
  bool first_is_fresh = true;
  try {
    auto loss = optimizer->step([&] {
      if (std::exchange(first_is_fresh, false)) {
        return first_loss;
      }
      auto later_loss = evaluate(*optimizer, closure);
      if (overflowed()) {
        throw ClosureOverflow();
      }
      return later_loss;
    });
    return result(/*stepped=*/true, std::move(loss));
  } catch (const ClosureOverflow&) {
    restore_parameters(*optimizer, parameters);
    restore_state();
    return result(/*stepped=*/false, first_loss);
  }
}

void GradScaler::update() {
  if (!is_enabled()) {
    return;
  }
  check_scale_exists("update()");
  const c10::NoGradGuard no_grad;
  at::Tensor found_inf;
  for (const auto& [identity, state] : optimizer_states_) {
    if (state.found_inf.defined()) {
      found_inf = found_inf.defined() ? at::maximum(found_inf, state.found_inf) : state.found_inf;
    }
  }
  TORCH_CHECK(found_inf.defined() || options_.allow_no_gradients(),
              "GradScaler: update() was called, but no gradient was checked since the last update(). Call step() or "
              "unscale_() first, on an optimizer whose parameters have gradients.");
  if (found_inf.defined() && !options_.static_scale()) {
    if (growth_tracker_may_exceed_interval_ && !options_.reproduce_pytorch()) {
      growth_tracker_.clamp_max_(options_.growth_interval() - 1);  // the kernel grows on equality alone
      growth_tracker_may_exceed_interval_ = false;
    }
    update_scale(found_inf);
    clamp_scale();
  }
  if (found_inf.defined()) {
    count_skips(found_inf);
  }
  optimizer_states_.clear();
}

void GradScaler::update_scale(const at::Tensor& found_inf) {
  const auto update = [&] {
    at::_amp_update_scale_(scale_, growth_tracker_, found_inf, options_.growth_factor(), options_.backoff_factor(),
                           options_.growth_interval());
  };
  if (options_.hysteresis() == 1) {
    update();
    return;
  }
  const auto overflowed = found_inf != 0;
  hysteresis_tracker_ =
      at::where(overflowed, (hysteresis_tracker_ - 1).clamp_min_(0), options_.hysteresis()).to(at::kInt);
  const auto backs_off_later = overflowed.logical_and(hysteresis_tracker_ > 0);
  const auto previous_scale = scale_.clone();
  update();
  scale_.copy_(at::where(backs_off_later, previous_scale, scale_));
}

void GradScaler::count_skips(const at::Tensor& found_inf) {
  if (options_.max_consecutive_skips() > 0) {
    consecutive_skips_ = at::where(found_inf != 0, consecutive_skips_ + 1, 0).to(at::kInt);
    ++updates_since_skips_were_read_;
  }
}

/// Throws if this iteration, skipped by `optimizer`, is the last of the skips in a row that are allowed.
void GradScaler::check_not_stuck(AmpOptimizer& optimizer, const at::Tensor& found_inf) {
  const int64_t most = options_.max_consecutive_skips();
  const bool waits_for_nothing = found_inf.is_cpu() || !optimizer.applies_scale_itself();
  if (most == 0 || (!waits_for_nothing && updates_since_skips_were_read_ + 1 < most)) {
    return;
  }
  updates_since_skips_were_read_ = 0;
  const auto skips = at::where(found_inf != 0, consecutive_skips_ + 1, 0).item<int64_t>();
  if (skips < most) {
    return;
  }
  const auto report = overflow_report(optimizer);
  const char* cause = report.empty() && options_.agree()
                          ? "No gradient of this process is inf or NaN as it stands: look at the others."
                      : report.empty()   ? "No gradient is inf or NaN as it stands: unscaling made it so, or the scale "
                                           "itself has no finite reciprocal. Raise min_scale."
                      : report.has_nan() ? "NaN stays NaN at any scale: find its source with FiniteTracer."
                                         : "Should inf remain at a scale of 1, lower the learning rate, or find its "
                                           "source with FiniteTracer.";
  TORCH_CHECK(false, "GradScaler: the last ", skips,
              " iterations in a row were skipped, the limit set by "
              "max_consecutive_skips. At scale ",
              get_scale(), ", ", report.summary(), ". ", cause);
}

void GradScaler::clamp_scale() {
  if (!options_.reproduce_pytorch()) {
    scale_.clamp_(options_.min_scale(), options_.max_scale());
  }
}

void GradScaler::update(double new_scale) {
  if (!is_enabled()) {
    return;
  }
  check_scale_exists("update()");
  scale_.fill_(checked_scale("the new scale given to update()", new_scale));
  optimizer_states_.clear();
}

void GradScaler::update(const at::Tensor& new_scale) {
  if (!is_enabled()) {
    return;
  }
  check_scale_exists("update()");
  TORCH_CHECK_VALUE(new_scale.defined() && new_scale.numel() == 1 && !new_scale.requires_grad() &&
                        (new_scale.is_cpu() || new_scale.device().type() == scale_.device().type()),
                    "GradScaler: the new scale given to update() must be a number, or a 1-element tensor on the CPU or "
                    "on ",
                    scale_.device(), " that requires no gradient.");
  if (new_scale.is_cpu()) {
    update(new_scale.item<double>());
    return;
  }
  const c10::NoGradGuard no_grad;
  scale_.copy_(new_scale.reshape({}), /*non_blocking=*/true);
  clamp_scale();
  optimizer_states_.clear();
}

double GradScaler::get_scale() const {
  if (!is_enabled()) {
    return 1.0;
  }
  return scale_.defined() ? scale_.item<double>() : options_.init_scale();
}

int64_t GradScaler::get_growth_tracker() const {
  if (!is_enabled()) {
    return 0;
  }
  return growth_tracker_.defined() ? growth_tracker_.item<int64_t>() : init_growth_tracker_;
}

void GradScaler::set_growth_factor(double growth_factor) {
  check_growth_factor(growth_factor);
  options_.growth_factor(growth_factor);
}

void GradScaler::set_backoff_factor(double backoff_factor) {
  check_backoff_factor(backoff_factor);
  options_.backoff_factor(backoff_factor);
}

void GradScaler::set_growth_interval(int64_t growth_interval) {
  check_growth_interval(growth_interval);
  options_.growth_interval(growth_interval);
  growth_tracker_may_exceed_interval_ = true;
}

GradScaler::StateDict GradScaler::state_dict() const {
  if (!is_enabled()) {
    return {};
  }
  StateDict state{{"scale", get_scale()},
                  {"growth_factor", get_growth_factor()},
                  {"backoff_factor", get_backoff_factor()},
                  {"growth_interval", get_growth_interval()},
                  {"_growth_tracker", get_growth_tracker()}};
  if (options_.hysteresis() > 1) {
    state[kHysteresisTracker] =
        hysteresis_tracker_.defined() ? hysteresis_tracker_.item<int64_t>() : init_hysteresis_tracker_;
  }
  return state;
}

void GradScaler::load_state_dict(const StateDict& state_dict) {
  if (!is_enabled()) {
    return;
  }
  TORCH_CHECK(!state_dict.empty(),
              "GradScaler: the state_dict is empty; it may come from a disabled scaler. Load it "
              "only if it has entries, or save it from an enabled one.");
  const double scale = checked_scale("entry \"scale\" of the state_dict", real_entry(state_dict, "scale"));
  const double growth_factor = real_entry(state_dict, "growth_factor");
  const double backoff_factor = real_entry(state_dict, "backoff_factor");
  const int64_t growth_interval = integer_entry(state_dict, "growth_interval");
  const int64_t growth_tracker = integer_entry(state_dict, "_growth_tracker");
  const int64_t hysteresis_tracker =
      state_dict.count(kHysteresisTracker) > 0 ? integer_entry(state_dict, kHysteresisTracker) : options_.hysteresis();
  check_growth_factor(growth_factor);
  check_backoff_factor(backoff_factor);
  check_growth_interval(growth_interval);
  TORCH_CHECK_VALUE(
      hysteresis_tracker >= 0 && hysteresis_tracker <= std::numeric_limits<int32_t>::max(),
      "GradScaler: entry \"_hysteresis_tracker\" of the state_dict must be between 0 and 2147483647, got ",
      hysteresis_tracker, ".");
  TORCH_CHECK_VALUE(growth_tracker >= 0 && growth_tracker <= std::numeric_limits<int32_t>::max(),
                    "GradScaler: entry \"_growth_tracker\" of the state_dict must be between 0 and 2147483647, got ",
                    growth_tracker, ".");

  options_.init_scale(scale).growth_factor(growth_factor).backoff_factor(backoff_factor);
  options_.growth_interval(growth_interval);
  init_growth_tracker_ = growth_tracker;
  init_hysteresis_tracker_ = std::min(hysteresis_tracker, options_.hysteresis());
  growth_tracker_may_exceed_interval_ = true;
  if (scale_.defined()) {
    scale_.fill_(scale);
    growth_tracker_.fill_(growth_tracker);
    hysteresis_tracker_.fill_(init_hysteresis_tracker_);
    consecutive_skips_.zero_();
  }
}

}  // namespace mezzo
