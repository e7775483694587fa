#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/optim/lbfgs.h>

#include <memory>
#include <utility>
#include <vector>

#include "mezzo/amp/grad_scaler.h"
#include "mezzo/optim/detail/amp_scaling_optimizer.h"
#include "scaling/loss_scale.h"

namespace mezzo {
namespace {

/// Leaves an optimizer's step from within its closure; never leaves GradScaler::step.
struct ClosureOverflow {};

std::vector<at::Tensor> clone_parameters(const torch::optim::Optimizer& optimizer) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> clones;
  for (const at::Tensor& parameter : detail::all_parameters(optimizer)) {
    clones.push_back(parameter.detach().clone());
  }
  return clones;
}

void restore_parameters(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& clones) {
  const c10::NoGradGuard no_grad;
  auto clone = clones.begin();
  for (const at::Tensor& parameter : detail::all_parameters(optimizer)) {
    parameter.copy_(*clone++);
  }
}

at::Tensor clone_if_defined(const at::Tensor& tensor) { return tensor.defined() ? tensor.clone() : tensor; }

template <class Tensors>
Tensors clone_all(Tensors tensors) {
  for (at::Tensor& tensor : tensors) {
    tensor = clone_if_defined(tensor);
  }
  return tensors;
}

/// `clone()` shares the tensors; LBFGS changes some of them in place. The other optimizers of
/// LibTorch call their closure once and first, before they change any.
std::unique_ptr<torch::optim::OptimizerParamState> deep_copy(const torch::optim::OptimizerParamState& state) {
  auto copy = state.clone();
  if (auto* lbfgs = dynamic_cast<torch::optim::LBFGSParamState*>(copy.get())) {
    lbfgs->d(clone_if_defined(lbfgs->d()));
    lbfgs->H_diag(clone_if_defined(lbfgs->H_diag()));
    lbfgs->prev_flat_grad(clone_if_defined(lbfgs->prev_flat_grad()));
    lbfgs->old_dirs(clone_all(lbfgs->old_dirs()));
    lbfgs->old_stps(clone_all(lbfgs->old_stps()));
    lbfgs->ro(clone_all(lbfgs->ro()));
    if (lbfgs->al()) {
      lbfgs->al(clone_all(*lbfgs->al()));
    }
  }
  return copy;
}

}  // namespace

/// Runs the closure once, then unscales and checks; `found_inf` is in the optimizer's state.
at::Tensor GradScaler::evaluate(Optimizer& optimizer, const torch::optim::Optimizer::LossClosure& closure) {
  auto loss = [&] {
    const c10::AutoGradMode enable_grad(true);
    return closure();
  }();
  TORCH_CHECK(loss_scale_->exists(),
              "GradScaler: the closure given to step() did not call scale(). Let it run backward on "
              "scaler.scale(loss) and return the loss.");
  if (dynamic_cast<detail::AmpScalingOptimizer*>(&optimizer) == nullptr) {
    auto found_inf = unscale_gradients(optimizer);
    check_has_gradients(optimizer, found_inf);
    optimizer_states_[&optimizer].found_inf = std::move(found_inf);
  }
  return loss;
}

StepResult GradScaler::step(Optimizer& optimizer, const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) {
    return step(optimizer);
  }
  if (!is_enabled()) {
    return updated(optimizer, /*found_inf=*/{}, optimizer.step(closure));
  }
  const auto stage = state_of(optimizer).stage;
  check_not_stepped(optimizer, stage);
  TORCH_CHECK(stage != Stage::kUnscaled, "GradScaler: step() with a closure was called on ", detail::name_of(optimizer),
              " after unscale_(). Leave unscale_() out: step() unscales the gradients of each closure call.");

  const auto first_loss = evaluate(optimizer, closure);
  if (auto* const amp = dynamic_cast<detail::AmpScalingOptimizer*>(&optimizer)) {
    return step_on_device(optimizer, *amp, {}, first_loss);
  }
  const auto found_inf = [&] { return state_of(optimizer).found_inf; };
  const auto overflowed = [&] { return !found_inf().defined() || found_inf().item<float>() != 0.0f; };
  if (overflowed()) {
    return finish(optimizer, found_inf(), /*stepped=*/false, first_loss);
  }

  const auto parameters = clone_parameters(optimizer);
  std::remove_reference_t<decltype(optimizer.state())> state;
  for (const auto& [key, of_parameter] : optimizer.state()) {
    state.emplace(key, deep_copy(*of_parameter));
  }
  bool first_is_fresh = true;
  try {
    auto loss = optimizer.step([&] {
      if (std::exchange(first_is_fresh, false)) {
        return first_loss;
      }
      auto later_loss = evaluate(optimizer, closure);
      if (overflowed()) {
        throw ClosureOverflow();
      }
      return later_loss;
    });
    return updated(optimizer, found_inf(), std::move(loss));
  } catch (const ClosureOverflow&) {
    restore_parameters(optimizer, parameters);
    optimizer.state() = std::move(state);
    return finish(optimizer, found_inf(), /*stepped=*/false, first_loss);
  }
}

}  // namespace mezzo
