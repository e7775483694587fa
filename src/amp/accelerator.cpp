#include "mezzo/amp/accelerator.h"

#include <c10/util/Exception.h>

#include <vector>

#include "mezzo/optim/clip_grad.h"
#include "mezzo/optim/detail/amp_scaling_optimizer.h"

namespace mezzo {
namespace {

/// Parameters, or their half copies, whichever have the gradients.
std::vector<at::Tensor> owners_of_gradients(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> owners;
  for (const auto& owner : detail::gradient_owners(optimizer)) {
    owners.push_back(owner.tensor);
  }
  return owners;
}

/// LibTorch's zero_grad leaves the gradients of half copies.
void drop_gradients(torch::optim::Optimizer& optimizer) {
  for (at::Tensor& owner : owners_of_gradients(optimizer)) {
    owner.mutable_grad().reset();
  }
}

}  // namespace

Accelerator::Accelerator(torch::optim::Optimizer& optimizer, AcceleratorOptions options)
    : optimizer_(optimizer),
      options_(std::move(options)),
      scaler_(GradScalerOptions(options_.grad_scaler())
                  .enabled(options_.dtype() == at::kHalf && options_.grad_scaler().enabled())) {
  TORCH_CHECK_VALUE(
      options_.dtype() == at::kHalf || options_.dtype() == at::kBFloat16 || options_.dtype() == at::kFloat,
      "Accelerator: dtype must be kHalf, kBFloat16 or kFloat, got ", options_.dtype());
  TORCH_CHECK_VALUE(options_.gradient_accumulation_steps() >= 1,
                    "Accelerator: gradient_accumulation_steps must be at least 1, got ",
                    options_.gradient_accumulation_steps());
  TORCH_CHECK_VALUE(options_.max_grad_norm() >= 0, "Accelerator: max_grad_norm must be at least 0, got ",
                    options_.max_grad_norm());
  drop_gradients(optimizer_);
}

at::Tensor Accelerator::add_gradients(const std::function<at::Tensor()>& closure) {
  const bool has_autocast = options_.dtype() != at::kFloat;
  const at::Tensor loss = [&] {
    std::optional<AutocastGuard> autocast;
    if (has_autocast) {
      autocast.emplace(options_.device(), options_.dtype());
    }
    return closure();
  }();
  TORCH_CHECK_VALUE(loss.defined() && loss.numel() == 1, "Accelerator: the closure returned ",
                    loss.defined() ? c10::str("a tensor of shape ", loss.sizes()) : std::string("no tensor"),
                    "; return the loss of the batch as one number, such as its mean");
  const int64_t parts = options_.gradient_accumulation_steps();
  scaler_.scale(parts == 1 ? loss : loss / parts).backward();
  ++accumulated_;
  return loss.detach();
}

AccumulateResult Accelerator::take_step(at::Tensor loss) {
  at::Tensor grad_norm;
  if (options_.max_grad_norm() > 0) {
    scaler_.unscale_(optimizer_);
    grad_norm = clip_grad_norm_(owners_of_gradients(optimizer_), options_.max_grad_norm());
  }
  StepResult step = scaler_.step(optimizer_);
  scaler_.update();
  drop_gradients(optimizer_);
  accumulated_ = 0;
  if (options_.lr_scheduler_step() && step.stepped()) {
    options_.lr_scheduler_step()();
  }
  return {std::move(loss), std::move(grad_norm), std::move(step)};
}

}  // namespace mezzo
