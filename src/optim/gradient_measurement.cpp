#include "mezzo/optim/detail/gradient_measurement.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>

#include "kernels/device_scalars.h"
#include "mezzo/optim/detail/amp_scaling_optimizer.h"
#include "scaling/gradient_pass.h"

namespace mezzo::detail {

MeasuredGradients GradientMeasurement::before_step(torch::optim::Optimizer& optimizer) {
  checked_.reset();
  return measure(optimizer, /*scale=*/{}, /*found_inf=*/{}, max_grad_norm_ > 0);
}

MeasuredGradients GradientMeasurement::before_scaled_step(torch::optim::Optimizer& optimizer,
                                                          const std::optional<at::Tensor>& grad_scale,
                                                          const at::Tensor& found_inf) {
  const c10::NoGradGuard no_grad;
  const auto checked = std::exchange(checked_, std::nullopt);
  const bool is_of_these = checked && checked->scale.has_value() == grad_scale.has_value() &&
                           (!grad_scale || checked->scale->is_same(*grad_scale));
  if (!is_of_these) {
    return measure(optimizer, grad_scale, found_inf, max_grad_norm_ > 0);
  }
  auto found = checked->measured;  // other processes may have found more
  found.statistics.found_inf = either(found_inf, found.statistics.found_inf);
  return found;
}

std::optional<at::Tensor> GradientMeasurement::check(torch::optim::Optimizer& optimizer,
                                                     const std::optional<at::Tensor>& scale,
                                                     bool takes_sparse) {
  const c10::NoGradGuard no_grad;
  checked_.reset();
  const auto is_sparse = [](const GradientOwner& owner) {
    return owner.tensor.grad().defined() && owner.tensor.grad().is_sparse();
  };
  if (max_grad_norm_ == 0 && (!scale || (takes_sparse && std::ranges::any_of(gradient_owners(optimizer), is_sparse)))) {
    return std::nullopt;
  }
  auto found = measure(optimizer, scale, /*found_inf=*/{}, /*measures=*/true);
  if (!found.statistics.norm.defined()) {
    return at::Tensor();
  }
  checked_ = {scale, std::move(found)};
  return checked_->measured.statistics.found_inf;
}

/// The measurements before a step: `found_inf`, given or undefined, and if it `measures` them, the statistics of the
/// gradients divided by `scale`. They are on the device of `scale`, if given, or else of the first gradient.
MeasuredGradients GradientMeasurement::measure(torch::optim::Optimizer& optimizer,
                                               const std::optional<at::Tensor>& scale,
                                               const at::Tensor& found_inf,
                                               bool measures) const {
  const c10::NoGradGuard no_grad;
  MeasuredGradients result{
      .statistics = {.is_measured = measures, .norm = {}, .sum_of_squares = {}, .found_inf = found_inf},
      .inv_scale = {},
      .clip = {}};
  auto& statistics = result.statistics;
  if (measures) {
    GradientPass pass;
    size_t index = 0;
    for (const auto& [owner, master] : gradient_owners(optimizer)) {
      TORCH_CHECK_VALUE(!owner.grad().defined() || owner.grad().layout() == at::kStrided, name_of(optimizer),
                        ": the gradient of ", parameter_name(optimizer, index),
                        " is sparse, and its norm cannot be measured. Set max_grad_norm to 0");
      if (owner.grad().defined()) {
        pass.add(owner);
      }
      ++index;
    }
    const auto found = pass.measure(scale.value_or(at::Tensor()), max_grad_norm_);
    statistics.norm = found.norm;
    statistics.sum_of_squares = found.sum_of_squares;
    statistics.found_inf = either(found_inf, found.found_inf);
    result.inv_scale = scale ? found.inv_scale : at::Tensor();
    result.clip = max_grad_norm_ > 0 ? found.clip : at::Tensor();
  }
  if (scale && !result.inv_scale.defined()) {
    result.inv_scale = inverse_of(*scale);
  }
  if (hook_ && (measures || found_inf.defined())) {
    statistics = hook_(statistics);
    result.clip =
        statistics.norm.defined() && max_grad_norm_ > 0 ? clip_factor(statistics.norm, max_grad_norm_) : at::Tensor();
  }
  return result;
}

}  // namespace mezzo::detail
