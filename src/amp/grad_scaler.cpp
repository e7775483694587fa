#include "mezzo/amp/grad_scaler.h"

#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "kernels/device_scalars.h"
#include "mezzo/amp/overflow_report.h"
#include "scaling/gradient_pass.h"

namespace mezzo {
namespace {

constexpr const char* kHysteresisTracker = "_hysteresis_tracker";

/// Leaves an optimizer's step from within its closure; never leaves GradScaler::step.
struct ClosureOverflow {};

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
  return output * copy_to(scale_, output.device());
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

ScaleOfGradients GradScaler::scale_of_gradients() const {
  return {scale_, scale_may_be_below_one(), options_.reproduce_pytorch()};
}

/// The verdict of all processes on the gradients of `optimizer`, which are unscaled then. All agree before any gradient
/// changes: where that throws, gradients are scaled as before, and the optimizer is ready.
at::Tensor GradScaler::unscale_gradients(AmpOptimizer& optimizer) const {
  GradientPass pass(optimizer, GradientPass::Use::kUnscale);
  const auto scale = scale_of_gradients();
  if (!options_.agree()) {
    return pass.unscale(scale);
  }
  auto found_inf = agreed(pass.check(scale));
  pass.unscale(scale);
  return found_inf;
}

/// The verdict of all processes before the step of an optimizer that applies the scale itself.
at::Tensor GradScaler::check_before_step(AmpOptimizer& optimizer, const OptimizerState& state) const {
  if (state.stage == Stage::kReady) {
    const auto own = options_.reproduce_pytorch() ? std::nullopt : optimizer.check_gradients(scale_);
    return agreed(own ? *own : GradientPass(optimizer, GradientPass::Use::kStepScaled).check(scale_of_gradients()));
  }
  // What was done to gradients since unscale_ may be found by the update. Alone, one hears of it afterwards.
  const auto later = options_.agree() ? optimizer.check_gradients(std::nullopt) : std::nullopt;
  return later ? agreed(either(state.found_inf, copy_to(*later, scale_.device()))) : state.found_inf;
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
  optimizer_states_[optimizer->identity()] = {Stage::kUnscaled, unscale_gradients(*optimizer)};
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
StepResult GradScaler::step_on_device(AmpOptimizer& optimizer, const OptimizerState& state, at::Tensor loss) {
  const auto found_inf = check_before_step(optimizer, state);
  check_has_gradients(optimizer, found_inf);
  if (!found_inf.defined()) {
    return finish(optimizer, found_inf, /*has_run=*/false, std::move(loss));
  }
  const auto grad_scale = state.stage == Stage::kReady ? std::optional(scale_) : std::nullopt;
  auto returned = optimizer.step_scaled(grad_scale, found_inf);
  return finish(optimizer, found_inf, /*has_run=*/true, loss.defined() ? std::move(loss) : std::move(returned));
}

/// The step of any other: unscale, wait for the verdict, `take_step`.
StepResult GradScaler::step_by(AmpOptimizerRef optimizer, const std::function<at::Tensor()>& take_step) {
  if (!is_enabled()) {
    return step_unscaled(*optimizer, take_step);
  }
  check_scale_exists("step()");
  auto state = state_of(*optimizer);
  check_not_stepped(*optimizer, state.stage);
  if (state.stage == Stage::kReady) {
    state.found_inf = unscale_gradients(*optimizer);
  }
  check_has_gradients(*optimizer, state.found_inf);
  // Should the step throw, the gradients are unscaled all the same.
  optimizer_states_[optimizer->identity()] = {Stage::kUnscaled, state.found_inf};
  if (!state.found_inf.defined() || state.found_inf.item<float>() != 0.0f) {
    return finish(*optimizer, state.found_inf, /*has_run=*/false, /*loss=*/{});
  }
  auto loss = take_step();
  return finish(*optimizer, state.found_inf, /*has_run=*/true, std::move(loss));
}

/// Takes note of a step's end. Where the update ran, what it says of itself is the last word.
StepResult GradScaler::finish(AmpOptimizer& optimizer, at::Tensor found_inf, bool has_run, at::Tensor loss) {
  const auto verdict = has_run ? optimizer.found_inf() : at::Tensor();
  if (verdict.defined()) {
    found_inf = copy_to(verdict, scale_.device());
  }
  const bool decided_there = has_run && (verdict.defined() || optimizer.applies_scale_itself());
  if (found_inf.defined() && (decided_there || !has_run)) {
    check_not_stuck(optimizer, found_inf);
  }
  optimizer_states_[optimizer.identity()] = {Stage::kStepped, found_inf};
  return decided_there ? StepResult(std::nullopt, std::move(found_inf), std::move(loss))
                       : StepResult(has_run, std::move(found_inf), std::move(loss));
}

/// The step of a disabled scaler. It stepped, unless the optimizer itself says otherwise.
StepResult GradScaler::step_unscaled(AmpOptimizer& optimizer, const std::function<at::Tensor()>& take_step) {
  auto loss = take_step();
  auto verdict = optimizer.found_inf();
  return verdict.defined() ? StepResult(std::nullopt, std::move(verdict), std::move(loss))
                           : StepResult(/*stepped=*/true, {}, std::move(loss));
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
    auto found_inf = unscale_gradients(optimizer);
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
    return step_unscaled(*optimizer, [&] { return optimizer->step(closure); });
  }
  const auto stage = state_of(*optimizer).stage;
  check_not_stepped(*optimizer, stage);
  TORCH_CHECK(stage != Stage::kUnscaled, "GradScaler: step() with a closure was called on ", optimizer->name(),
              " after unscale_(). Leave unscale_() out: every gradient that the closure computes is unscaled for you.");

  const auto first_loss = evaluate(*optimizer, closure);
  if (optimizer->applies_scale_itself()) {
    return step_on_device(*optimizer, {}, first_loss);
  }
  const auto found_inf = [&] { return state_of(*optimizer).found_inf; };
  const auto overflowed = [&] { return !found_inf().defined() || found_inf().item<float>() != 0.0f; };
  if (overflowed()) {
    return finish(*optimizer, found_inf(), /*has_run=*/false, first_loss);
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
    return finish(*optimizer, found_inf(), /*has_run=*/true, std::move(loss));
  } catch (const ClosureOverflow&) {
    restore_parameters(*optimizer, parameters);
    restore_state();
    return finish(*optimizer, found_inf(), /*has_run=*/false, first_loss);
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
    found_inf = either(found_inf, state.found_inf);
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
  scale_.copy_(copy_to(new_scale.reshape({}), scale_.device()));
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
