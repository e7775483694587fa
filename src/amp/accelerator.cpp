#include "mezzo/amp/accelerator.h"

#include <c10/util/Exception.h>

#include <vector>

#include "mezzo/optim/clip_grad.h"
#include "mezzo/optim/optimizer.h"

namespace mezzo {
namespace {

/// Parameters, or half copies that have the gradients in their place.
std::vector<at::Tensor> owners_of_gradients(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> owners;
  for (const auto& owner : detail::gradient_owners(optimizer)) {
    owners.push_back(owner.tensor);
  }
  return owners;
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
  start_afresh();
}

at::Tensor Accelerator::add_gradients(const std::function<at::Tensor()>& closure,
                                      const std::function<void(const at::Tensor&)>& backward) {
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
  backward(scaler_.scale(parts == 1 ? loss : loss / parts));
  ++accumulated_;
  return loss.detach();
}

AccumulateResult Accelerator::take_step(at::Tensor loss) {
  AccumulateResult result{std::move(loss), {}, {}};
  try {
    if (options_.max_grad_norm() > 0) {
      scaler_.unscale_(optimizer_);
      result.grad_norm = clip_grad_norm_(owners_of_gradients(optimizer_), options_.max_grad_norm());
    }
    result.step = scaler_.step(optimizer_);
    scaler_.update();
  } catch (...) {
    if (scaler_.is_enabled()) {
      scaler_.update(scaler_.get_scale());
    }
    start_afresh();
    throw;
  }
  const auto* const ours = dynamic_cast<const Optimizer*>(&optimizer_);
  if (ours != nullptr && !result.grad_norm.defined()) {
    result.grad_norm = ours->grad_norm();
  }
  start_afresh();
  if (options_.lr_scheduler_step() && result.stepped()) {
    options_.lr_scheduler_step()();
  }
  return result;
}

/// Drops the gradients. LibTorch's zero_grad leaves the gradients of half copies.
void Accelerator::start_afresh() {
  for (at::Tensor& owner : owners_of_gradients(optimizer_)) {
    owner.mutable_grad().reset();
  }
  accumulated_ = 0;
}

}  // namespace mezzo
