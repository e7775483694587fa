#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <utility>
#include <vector>

#include "amp/scaled_gradients.h"
#include "mezzo/amp/grad_scaler.h"
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

}  // namespace

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
    auto found_inf = gradients_of(optimizer).unscale();
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
    return updated(*optimizer, /*found_inf=*/{}, optimizer->step(closure));
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
    return finish(*optimizer, found_inf(), /*stepped=*/false, first_loss);
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
    return updated(*optimizer, found_inf(), std::move(loss));
  } catch (const ClosureOverflow&) {
    restore_parameters(*optimizer, parameters);
    restore_state();
    return finish(*optimizer, found_inf(), /*stepped=*/false, first_loss);
  }
}

}  // namespace mezzo
