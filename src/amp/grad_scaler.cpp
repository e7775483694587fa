#include "mezzo/amp/grad_scaler.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/serialize/archive.h>

#include <limits>
#include <string>
#include <utility>

#include "kernels/device_scalars.h"
#include "kernels/dtypes.h"
#include "memory/recording_scope.h"
#include "mezzo/amp/overflow_report.h"
#include "mezzo/optim/detail/amp_scaling_optimizer.h"
#include "scaling/gradient_pass.h"
#include "scaling/loss_scale.h"

namespace mezzo {
namespace {

constexpr int64_t kSkipsToWarnOf = 50;

/// nullptr for an optimizer whose steps the scaler decides on.
detail::AmpScalingOptimizer* amp_scaling(torch::optim::Optimizer& optimizer) {
  auto* const amp = dynamic_cast<detail::AmpScalingOptimizer*>(&optimizer);
  return amp != nullptr && amp->steps_on_device() ? amp : nullptr;
}

void check_gradient(const torch::optim::Optimizer& optimizer,
                    size_t index,
                    const at::Tensor& gradient,
                    bool half_allowed) {
  const auto dtype = gradient.scalar_type();
  if (!at::isFloatingType(dtype) || (dtype == at::kHalf && !half_allowed)) {
    const auto who = c10::str(detail::parameter_name(optimizer, index), " of ", detail::name_of(optimizer));
    TORCH_CHECK_VALUE(dtype == at::kHalf, "GradScaler: ", who, " has a gradient of dtype ", dtype_name(dtype),
                      " and shape ", gradient.sizes(),
                      "; only floating-point gradients can be unscaled. Give that parameter an optimizer that the "
                      "scaler does not see.");
    TORCH_CHECK_VALUE(false, "GradScaler: ", who, " has a float16 gradient of shape ", gradient.sizes(),
                      ", too coarse to be unscaled in place. Keep parameters in float32 and run forward under "
                      "autocast, or use one of mezzo's optimizers with MasterWeights.");
  }
}

LossScaleRules rules_of(const GradScalerOptions& options) {
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
    : options_(std::move(options)), loss_scale_(std::make_unique<LossScale>(rules_of(options_))) {
  constexpr auto most = std::numeric_limits<int32_t>::max();
  TORCH_CHECK_VALUE(options_.max_consecutive_skips() >= 0 && options_.max_consecutive_skips() <= most,
                    "GradScaler: max_consecutive_skips must be 0 (no limit) to ", most, ", got ",
                    options_.max_consecutive_skips(), ".");
}

GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;
GradScaler::~GradScaler() = default;

at::Tensor GradScaler::scale(const at::Tensor& output) { return scale(at::TensorList(output)).front(); }

std::vector<at::Tensor> GradScaler::scale(at::TensorList outputs) {
  auto scaled = outputs.vec();
  if (!is_enabled() || outputs.empty()) {
    return scaled;
  }
  for (const at::Tensor& output : outputs) {
    TORCH_CHECK_VALUE(output.defined(),
                      "GradScaler: scale() got an undefined tensor. Pass the loss, or model outputs.");
  }
  if (!loss_scale_->exists()) {
    loss_scale_->create(outputs.front().device());
  }
  for (at::Tensor& output : scaled) {
    output = output * copy_to(scale_tensor(), output.device());
  }
  return scaled;
}

/// The gradients of an optimizer.
/// @throws c10::ValueError  for one that cannot be divided, naming the parameter
GradientPass GradScaler::gradients_of(Optimizer& optimizer, Unscaled unscaled) const {
  const c10::NoGradGuard no_grad;
  auto* const amp = amp_scaling(optimizer);
  const bool half_allowed = unscaled == Unscaled::kInFloat32 || (amp != nullptr && amp->allows_half_gradients());
  GradientPass pass;
  std::vector<at::Tensor> owners;
  size_t index = 0;
  for (auto& [owner, master] : detail::gradient_owners(optimizer)) {
    if (owner.grad().defined()) {
      check_gradient(optimizer, index, owner.grad(), half_allowed || master.defined());
      pass.add(owner, unscaled == Unscaled::kInPlace ? master : at::Tensor());
      owners.push_back(owner);
    }
    ++index;
  }
  for (const at::Tensor& owner : owners) {  // sums entries of equal index, which may overflow: before the check
    if (at::Tensor& gradient = owner.mutable_grad(); gradient.is_sparse() && gradient.scalar_type() == at::kHalf) {
      gradient = gradient.coalesce();
    }
  }
  return pass;
}

/// What to divide gradients by.
ScaleOfGradients GradScaler::scale_of_gradients() const {
  // On the CPU there is nothing to wait for.
  const bool may_be_below_one =
      scale_tensor().is_cpu() ? !(scale_tensor().item<float>() >= 1.0f) : options_.min_scale() < 1.0;
  return {scale_tensor(), may_be_below_one, options_.reproduce_pytorch()};
}

/// Divides every gradient. Returns the `found_inf` of all processes: 1 or 0, on the scale's device;
/// undefined if no process has a gradient. No gradient has changed if the all-reduce throws.
at::Tensor GradScaler::unscale_gradients(Optimizer& optimizer) const {
  auto pass = gradients_of(optimizer, Unscaled::kInPlace);
  const auto scale = scale_of_gradients();
  if (!options_.found_inf_all_reduce()) {
    return pass.unscale(scale);
  }
  auto found_inf = all_reduced(pass.check(scale, Unscaled::kInPlace));
  pass.unscale(scale);
  return found_inf;
}

/// The same `found_inf`, of gradients that `amp` will divide. An optimizer that measures them
/// anyway does both at once.
at::Tensor GradScaler::check_scaled_gradients(Optimizer& optimizer, detail::AmpScalingOptimizer& amp) const {
  const auto own = options_.reproduce_pytorch() ? std::nullopt : amp.check_gradients(scale_tensor());
  return all_reduced(
      own ? *own : gradients_of(optimizer, Unscaled::kInFloat32).check(scale_of_gradients(), Unscaled::kInFloat32));
}

/// That of all processes.
at::Tensor GradScaler::all_reduced(const at::Tensor& found_inf) const {
  if (!options_.found_inf_all_reduce()) {
    return found_inf;
  }
  const c10::NoGradGuard no_grad;
  const bool has_gradients = found_inf.defined();
  const auto options = scale_tensor().options();
  const auto no = at::zeros({}, options);
  auto flags = has_gradients ? at::stack({found_inf, at::ones({}, options)}) : at::stack({no, no});
  options_.found_inf_all_reduce()(flags);
  if (!has_gradients && flags[1].item<float>() == 0.0f) {  // waits for the device in this rare case alone
    return {};
  }
  return flags[0];
}

void GradScaler::check_scale_exists(const char* function) const {
  TORCH_CHECK(loss_scale_->exists(), "GradScaler: ", function,
              " was called before scale(). Run backward on scaler.scale(loss) first.");
}

void GradScaler::check_not_stepped(const Optimizer& optimizer, Stage stage) const {
  TORCH_CHECK(stage != Stage::kStepped, "GradScaler: step() has already been called on ", detail::name_of(optimizer),
              " since the last update(). Call update() once per iteration, after the step() of every optimizer.");
}

void GradScaler::check_has_gradients(const Optimizer& optimizer, const at::Tensor& found_inf) const {
  if (found_inf.defined() || options_.allow_no_gradients()) {
    return;
  }
  TORCH_CHECK(false, "GradScaler: no gradient of ", detail::name_of(optimizer), " was checked: none of its ",
              detail::num_parameters(optimizer),
              " parameters had one. Run backward on scaler.scale(loss) before unscale_() or step(), or set "
              "the option allow_no_gradients to pass over such optimizers.");
}

GradScaler::OptimizerState GradScaler::state_of(const Optimizer& optimizer) const {
  const auto found = optimizer_states_.find(&optimizer);
  return found == optimizer_states_.end() ? OptimizerState{} : found->second;
}

void GradScaler::unscale_(Optimizer& optimizer) {
  if (!is_enabled()) {
    return;
  }
  check_scale_exists("unscale_()");
  const auto stage = state_of(optimizer).stage;
  TORCH_CHECK(stage != Stage::kUnscaled, "GradScaler: unscale_() has already been called on ",
              detail::name_of(optimizer), " since the last update(). Call it once per step, after the last backward.");
  TORCH_CHECK(stage != Stage::kStepped, "GradScaler: unscale_() was called on ", detail::name_of(optimizer),
              " after step(). Call it before step(), and update() at the end of the iteration.");
  optimizer_states_[&optimizer] = {Stage::kUnscaled, unscale_gradients(optimizer)};
}

StepResult GradScaler::step(Optimizer& optimizer) {
  auto* const amp = amp_scaling(optimizer);
  if (!is_enabled() || amp == nullptr) {
    return step_by(optimizer, [&] { return optimizer.step(nullptr); });
  }
  check_scale_exists("step()");
  const auto state = state_of(optimizer);
  check_not_stepped(optimizer, state.stage);
  return step_on_device(optimizer, *amp, state, /*loss=*/{});
}

/// The step of an optimizer that unscales and skips on the device: no host sync anywhere.
StepResult GradScaler::step_on_device(Optimizer& optimizer,
                                      detail::AmpScalingOptimizer& amp,
                                      const OptimizerState& state,
                                      at::Tensor loss) {
  const bool are_scaled = state.stage == Stage::kReady;
  auto found_inf = are_scaled ? check_scaled_gradients(optimizer, amp) : state.found_inf;
  // Gradients that became inf since unscale_: this process would hear from the update, others not.
  if (const auto later =
          !are_scaled && options_.found_inf_all_reduce() ? amp.check_gradients(std::nullopt) : std::nullopt) {
    found_inf = all_reduced(either(found_inf, copy_to(*later, scale_tensor().device())));
  }
  check_has_gradients(optimizer, found_inf);
  if (!found_inf.defined()) {
    return finish(optimizer, std::move(found_inf), /*stepped=*/false, std::move(loss));
  }
  auto returned = amp.step_scaled(are_scaled ? std::optional(scale_tensor()) : std::nullopt, found_inf);
  return updated(optimizer, std::move(found_inf), loss.defined() ? std::move(loss) : std::move(returned));
}

/// The step of any other: unscale, wait for `found_inf`, `take_step`.
StepResult GradScaler::step_by(Optimizer& optimizer, const std::function<at::Tensor()>& take_step) {
  if (!is_enabled()) {
    return updated(optimizer, /*found_inf=*/{}, take_step());
  }
  check_scale_exists("step()");
  auto state = state_of(optimizer);
  check_not_stepped(optimizer, state.stage);
  if (state.stage == Stage::kReady) {
    state.found_inf = unscale_gradients(optimizer);
  }
  check_has_gradients(optimizer, state.found_inf);
  // Should the step throw, the gradients are unscaled anyway.
  optimizer_states_[&optimizer] = {Stage::kUnscaled, state.found_inf};
  if (!state.found_inf.defined() || state.found_inf.item<float>() != 0.0f) {
    return finish(optimizer, state.found_inf, /*stepped=*/false, /*loss=*/{});
  }
  return updated(optimizer, state.found_inf, take_step());
}

/// The optimizer has run: its own `found_inf` decides.
StepResult GradScaler::updated(Optimizer& optimizer, at::Tensor found_inf, at::Tensor loss) {
  auto* const amp = amp_scaling(optimizer);
  const auto own = amp != nullptr ? amp->found_inf() : at::Tensor();
  const bool decided_itself = own.defined() || (is_enabled() && amp != nullptr);
  if (own.defined()) {
    found_inf = is_enabled() ? copy_to(own, scale_tensor().device()) : own;
  }
  return finish(optimizer, std::move(found_inf), decided_itself ? std::nullopt : std::optional(true), std::move(loss));
}

/// Takes note of a step's end. `stepped`: nullopt where `found_inf` is to tell, on the device.
StepResult GradScaler::finish(Optimizer& optimizer,
                              at::Tensor found_inf,
                              std::optional<bool> stepped,
                              at::Tensor loss) {
  if (is_enabled()) {
    if (found_inf.defined() && stepped != true) {
      check_not_stuck(optimizer, found_inf);
    }
    note_skip(found_inf, stepped);
    OptimizerState& state = optimizer_states_[&optimizer];
    state = {Stage::kStepped, found_inf, state.stage};
  }
  return StepResult(stepped, std::move(found_inf), std::move(loss));
}

void GradScaler::undo_step(const Optimizer& optimizer) {
  const auto found = optimizer_states_.find(&optimizer);
  if (found != optimizer_states_.end() && found->second.stage == Stage::kStepped) {
    found->second.stage = found->second.stage_before_step;
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
  end_iteration();
}

/// A skip of this iteration, if `found_inf` is on the host.
void GradScaler::note_skip(const at::Tensor& found_inf, std::optional<bool> stepped) {
  if (!found_inf.defined() || stepped == true) {
    return;
  }
  saw_skip_ |= stepped == false || (found_inf.is_cpu() && found_inf.item<float>() != 0.0f);
  if (saw_skip_ && skips_seen_in_a_row_ >= kSkipsToWarnOf && !std::exchange(warned_of_skips_, true)) {
    TORCH_WARN("GradScaler: more than ", kSkipsToWarnOf, " iterations in a row were skipped, and the scale is ",
               get_scale(),
               ". Two causes are usual. Gradients are not zeroed after a skipped step, so that inf or "
               "NaN stays in them: call zero_grad() in every iteration. Or the loss or a weight is NaN: find the op "
               "with FiniteTracer. The option max_consecutive_skips turns such a run into an error.");
  }
}

void GradScaler::end_iteration() {
  optimizer_states_.clear();
  skips_seen_in_a_row_ = std::exchange(saw_skip_, false) ? skips_seen_in_a_row_ + 1 : 0;
}

/// Throws if this iteration, skipped by `optimizer`, is the last of the skips
/// in a row that are allowed.
void GradScaler::check_not_stuck(Optimizer& optimizer, const at::Tensor& found_inf) {
  const int64_t most = options_.max_consecutive_skips();
  const bool waits_for_nothing = found_inf.is_cpu() || amp_scaling(optimizer) == nullptr;
  if (most == 0 || RecordingScope::is_open() || (!waits_for_nothing && updates_since_skips_were_read_ + 1 < most)) {
    return;
  }
  updates_since_skips_were_read_ = 0;
  const int64_t skips = loss_scale_->skips_in_a_row(found_inf);
  if (skips < most) {
    return;
  }
  const auto report = overflow_report(optimizer);
  const char* cause = report.empty() && options_.found_inf_all_reduce()
                          ? "No gradient of this process is inf or NaN: check the other processes."
                      : report.empty() ? "No scaled gradient is inf or NaN: unscaling overflowed, or the scale has no "
                                         "finite reciprocal. Raise min_scale."
                      : report.has_nan() ? "NaN stays NaN at any scale: find its source with FiniteTracer."
                                         : "If inf remains at a scale of 1, lower the learning rate, or find its "
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
  end_iteration();
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
  end_iteration();
}

const at::Tensor& GradScaler::scale_tensor() const { return loss_scale_->tensor(); }

double GradScaler::get_scale() const { return is_enabled() ? loss_scale_->value() : 1.0; }

int64_t GradScaler::get_growth_tracker() const { return is_enabled() ? loss_scale_->growth_tracker() : 0; }

int64_t GradScaler::get_skipped_steps() const { return is_enabled() ? loss_scale_->skipped() : 0; }

double GradScaler::get_growth_factor() const { return loss_scale_->rules().growth_factor; }

double GradScaler::get_backoff_factor() const { return loss_scale_->rules().backoff_factor; }

int64_t GradScaler::get_growth_interval() const { return loss_scale_->rules().growth_interval; }

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
  skips_seen_in_a_row_ = 0;
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
