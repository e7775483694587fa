#include "mezzo/amp/grad_scaler.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/device_scalars.h"
#include "mezzo/amp/overflow_report.h"
#include "scaling/gradient_pass.h"
#include "scaling/loss_scale.h"

namespace mezzo {
namespace {

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

LossScaleSettings settings_of(const GradScalerOptions& options) {
  return {.init_scale = options.init_scale(),
          .growth_factor = options.growth_factor(),
          .backoff_factor = options.backoff_factor(),
          .growth_interval = options.growth_interval(),
          .min_scale = options.min_scale(),
          .max_scale = options.max_scale(),
          .hysteresis = options.hysteresis(),
          .is_static = options.static_scale(),
          .reproduce_pytorch = options.reproduce_pytorch(),
          .counts_skips_in_a_row = options.max_consecutive_skips() > 0};
}

}  // namespace

bool StepResult::stepped() const {
  if (!stepped_) {
    stepped_ = found_inf_.item<float>() == 0.0f;
  }
  return *stepped_;
}

GradScaler::GradScaler(GradScalerOptions options)
    : options_(std::move(options)), loss_scale_(std::make_unique<LossScale>(settings_of(options_))) {
  constexpr auto most = std::numeric_limits<int32_t>::max();
  TORCH_CHECK_VALUE(options_.max_consecutive_skips() >= 0 && options_.max_consecutive_skips() <= most,
                    "GradScaler: max_consecutive_skips must be between 0, which allows any number, and ", most,
                    ", got ", options_.max_consecutive_skips(), ".");
}

GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;
GradScaler::~GradScaler() = default;

at::Tensor GradScaler::scale(const at::Tensor& output) {
  if (!is_enabled()) {
    return output;
  }
  TORCH_CHECK_VALUE(output.defined(), "GradScaler: scale() got an undefined tensor. Pass the loss, or model outputs.");
  if (!loss_scale_->exists()) {
    loss_scale_->create(output.device());
  }
  return output * copy_to(scale_tensor(), output.device());
}

std::vector<at::Tensor> GradScaler::scale(at::TensorList outputs) {
  if (!is_enabled() || outputs.empty()) {
    return outputs.vec();
  }
  for (const at::Tensor& output : outputs) {
    TORCH_CHECK_VALUE(output.defined(),
                      "GradScaler: scale() got an undefined tensor in a list. Pass losses, or model outputs.");
  }
  if (!loss_scale_->exists()) {
    loss_scale_->create(outputs.front().device());
  }
  DeviceCopies scale(scale_tensor());
  std::vector<at::Tensor> scaled;
  scaled.reserve(outputs.size());
  for (const at::Tensor& output : outputs) {
    scaled.push_back(output * scale.on(output.device()));
  }
  return scaled;
}

bool GradScaler::scale_may_be_below_one() const {
  if (scale_tensor().is_cpu()) {
    return !(scale_tensor().item<float>() >= 1.0f);  // nothing to wait for on the CPU
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
  const auto no = at::zeros({}, scale_tensor().options());
  auto flags = has_gradients ? at::stack({found_inf, at::ones({}, scale_tensor().options())}) : at::stack({no, no});
  options_.agree()(flags);
  if (!has_gradients && flags[1].item<float>() == 0.0f) {  // waits for the device in this rare case alone
    return {};
  }
  return flags[0];
}

ScaleOfGradients GradScaler::scale_of_gradients() const {
  return {scale_tensor(), scale_may_be_below_one(), options_.reproduce_pytorch()};
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
    const auto own = options_.reproduce_pytorch() ? std::nullopt : optimizer.check_gradients(scale_tensor());
    return agreed(own ? *own : GradientPass(optimizer, GradientPass::Use::kStepScaled).check(scale_of_gradients()));
  }
  // What was done to gradients since unscale_ may be found by the update. Alone, one hears of it afterwards.
  const auto later = options_.agree() ? optimizer.check_gradients(std::nullopt) : std::nullopt;
  return later ? agreed(either(state.found_inf, copy_to(*later, scale_tensor().device()))) : state.found_inf;
}

void GradScaler::check_scale_exists(const char* function) const {
  TORCH_CHECK(loss_scale_->exists(), "GradScaler: ", function,
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
  const auto grad_scale = state.stage == Stage::kReady ? std::optional(scale_tensor()) : std::nullopt;
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
    found_inf = copy_to(verdict, scale_tensor().device());
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
  TORCH_CHECK(loss_scale_->exists(),
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
  if (found_inf.defined()) {
    loss_scale_->update(found_inf);
    ++updates_since_skips_were_read_;
  }
  optimizer_states_.clear();
}

/// Throws if this iteration, skipped by `optimizer`, is the last of the skips in a row that are allowed.
void GradScaler::check_not_stuck(AmpOptimizer& optimizer, const at::Tensor& found_inf) {
  const int64_t most = options_.max_consecutive_skips();
  const bool waits_for_nothing = found_inf.is_cpu() || !optimizer.applies_scale_itself();
  if (most == 0 || (!waits_for_nothing && updates_since_skips_were_read_ + 1 < most)) {
    return;
  }
  updates_since_skips_were_read_ = 0;
  const int64_t skips = loss_scale_->skips_in_a_row(found_inf);
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

void GradScaler::update(double new_scale) {
  if (!is_enabled()) {
    return;
  }
  check_scale_exists("update()");
  loss_scale_->set(loss_scale_->checked("the new scale given to update()", new_scale));
  optimizer_states_.clear();
}

void GradScaler::update(const at::Tensor& new_scale) {
  if (!is_enabled()) {
    return;
  }
  check_scale_exists("update()");
  TORCH_CHECK_VALUE(new_scale.defined() && new_scale.numel() == 1 && !new_scale.requires_grad() &&
                        (new_scale.is_cpu() || new_scale.device().type() == scale_tensor().device().type()),
                    "GradScaler: the new scale given to update() must be a number, or a 1-element tensor on the CPU or "
                    "on ",
                    scale_tensor().device(), " that requires no gradient.");
  if (new_scale.is_cpu()) {
    update(new_scale.item<double>());
    return;
  }
  loss_scale_->set(new_scale);
  optimizer_states_.clear();
}

const at::Tensor& GradScaler::scale_tensor() const { return loss_scale_->tensor(); }

double GradScaler::get_scale() const { return is_enabled() ? loss_scale_->value() : 1.0; }

int64_t GradScaler::get_growth_tracker() const { return is_enabled() ? loss_scale_->growth_tracker() : 0; }

int64_t GradScaler::get_skipped_steps() const { return is_enabled() ? loss_scale_->skipped() : 0; }

double GradScaler::get_growth_factor() const { return loss_scale_->settings().growth_factor; }

double GradScaler::get_backoff_factor() const { return loss_scale_->settings().backoff_factor; }

int64_t GradScaler::get_growth_interval() const { return loss_scale_->settings().growth_interval; }

void GradScaler::set_growth_factor(double growth_factor) { loss_scale_->set_growth_factor(growth_factor); }

void GradScaler::set_backoff_factor(double backoff_factor) { loss_scale_->set_backoff_factor(backoff_factor); }

void GradScaler::set_growth_interval(int64_t growth_interval) { loss_scale_->set_growth_interval(growth_interval); }

GradScaler::StateDict GradScaler::state_dict() const { return is_enabled() ? loss_scale_->state_dict() : StateDict{}; }

void GradScaler::load_state_dict(const StateDict& state_dict) {
  if (!is_enabled()) {
    return;
  }
  TORCH_CHECK(!state_dict.empty(),
              "GradScaler: the state_dict is empty; it may come from a disabled scaler. Load it "
              "only if it has entries, or save it from an enabled one.");
  loss_scale_->load_state_dict(state_dict);
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const GradScaler& scaler) {
  for (const auto& [key, value] : scaler.state_dict()) {
    archive.write(key, c10::IValue(value));
  }
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, GradScaler& scaler) {
  GradScaler::StateDict state;
  for (const std::string& key : archive.keys()) {
    c10::IValue value;
    if (archive.try_read(key, value) && value.isScalar()) {
      state[key] = value.toScalar();
    }
  }
  scaler.load_state_dict(state);
  return archive;
}

}  // namespace mezzo
