#include "scaling/gradient_pass.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <limits>
#include <optional>
#include <utility>

#include "kernels/device_scalars.h"
#include "kernels/grouped.h"

namespace mezzo {
namespace {

/// Whether inf or NaN is in `tensors`, which are multiplied by `factor`.
void check_and_multiply(const std::vector<at::Tensor>& tensors, DeviceCopies& factor, DeviceCopies& found_inf) {
  for (const auto& group : grouped(tensors, device_and_dtype_of)) {
    const auto device = group.front().device();
    at::_amp_foreach_non_finite_check_and_unscale_(group, found_inf.on(device), factor.on(device));
  }
}

/// The norm of each gradient of a group; of those without elements none, since LibTorch
/// refuses their largest magnitude.
at::Tensor norms_of(std::vector<at::Tensor> group, double norm_type, at::ScalarType dtype) {
  const auto options = group.front().options().dtype(dtype);
  std::erase_if(group, [](const at::Tensor& gradient) { return gradient.numel() == 0; });
  return group.empty() ? at::zeros({1}, options) : at::stack(at::_foreach_norm(group, norm_type, dtype));
}

at::ScalarType float32_or_wider(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

/// The largest magnitudes in `group` times `inv_scale`, as `dtype` holds them: finite iff
/// all unscaled gradients are.
at::Tensor unscaled_magnitudes(const std::vector<at::Tensor>& group,
                               const at::Tensor& inv_scale,
                               at::ScalarType dtype) {
  const auto wide = float32_or_wider(group.front().scalar_type());
  const auto largest = norms_of(group, std::numeric_limits<double>::infinity(), wide);
  return (largest * inv_scale).to(dtype).to(wide);
}

/// 1, or not finite where the scale or its reciprocal is not: then no gradient means anything.
at::Tensor scale_times_inverse(const at::Tensor& scale) { return scale * inverse_of(scale); }

}  // namespace

/// As kernels want them: of a sparse gradient, those that are stored.
at::Tensor GradientPass::Gradient::values() const {
  const at::Tensor& gradient = owner.grad();
  return gradient.is_sparse() ? gradient._values() : gradient;
}

void GradientPass::add(at::Tensor owner, at::Tensor master) {
  gradients_.push_back({std::move(owner), std::move(master)});
}

std::vector<std::vector<at::Tensor>> GradientPass::groups() const {
  std::vector<at::Tensor> gradients;
  for (const Gradient& gradient : gradients_) {
    gradients.push_back(gradient.values());
  }
  return grouped(std::move(gradients), device_and_dtype_of);
}

at::Tensor GradientPass::check(const ScaleOfGradients& scale, Unscaled unscaled) const {
  if (empty()) {
    return {};
  }
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> in_place, in_float32;
  for (const Gradient& gradient : gradients_) {
    const bool keeps_dtype = unscaled == Unscaled::kInPlace && !gradient.master.defined();
    (keeps_dtype ? in_place : in_float32).push_back(gradient.values());
  }
  std::vector<at::Tensor> finite_if_all_are;
  if (!scale.reproduce_pytorch) {
    finite_if_all_are.push_back(scale_times_inverse(scale.value));
  }
  DeviceCopies inv_scale(inverse_of(scale.value));
  for (auto* gradients : {&in_place, &in_float32}) {
    if (scale.reproduce_pytorch || !scale.may_be_below_one) {
      finite_if_all_are.insert(finite_if_all_are.end(), gradients->begin(), gradients->end());
      continue;
    }
    for (const auto& group : grouped(std::move(*gradients), device_and_dtype_of)) {
      const auto dtype = group.front().scalar_type();
      const auto kept_as = gradients == &in_place ? dtype : float32_or_wider(dtype);
      finite_if_all_are.push_back(unscaled_magnitudes(group, inv_scale.on(group.front().device()), kept_as));
    }
  }
  DeviceCopies one(at::ones({}, scale.value.options())), found_inf(at::zeros({}, scale.value.options()));
  check_and_multiply(finite_if_all_are, one, found_inf);
  return found_inf.maximum();  // not the sum: fused kernels skip on exactly 1
}

at::Tensor GradientPass::unscale(const ScaleOfGradients& scale) {
  if (empty()) {
    return {};
  }
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  for (Gradient& gradient : gradients_) {
    auto& [owner, master] = gradient;
    if (master.defined()) {
      master.mutable_grad() = owner.grad().to(at::kFloat);
      owner.mutable_grad().reset();
      owner = std::exchange(master, {});
    }
    values.push_back(gradient.values());
  }
  if (!scale.reproduce_pytorch) {
    values.push_back(scale_times_inverse(scale.value));
  }
  DeviceCopies one(at::ones({}, scale.value.options())), found_inf(at::zeros({}, scale.value.options()));
  DeviceCopies inv_scale(inverse_of(scale.value));
  check_and_multiply(values, inv_scale, found_inf);
  if (!scale.reproduce_pytorch && scale.may_be_below_one) {  // unscaling multiplies: look at what comes out
    check_and_multiply(values, one, found_inf);
  }
  return found_inf.maximum();
}

kernels::GradientSummary GradientPass::measure(const at::Tensor& inv_scale) const {
  if (empty()) {
    return {};
  }
  std::vector<at::Tensor> gradients;
  for (const Gradient& gradient : gradients_) {
    gradients.push_back(gradient.owner.grad());
  }
  const auto device = inv_scale.defined() ? inv_scale.device() : gradients.front().device();
  std::vector<at::Tensor> norms, sums;
  at::Tensor found_inf;
  for (const auto& group : grouped(std::move(gradients), device_of)) {  // of any dtypes: its kernel reads them all
    const auto summary = kernels::summarize_gradients(group, copy_to(inv_scale, group.front().device()));
    norms.push_back(copy_to(summary.norm, device));
    sums.push_back(copy_to(summary.sum_of_squares, device));
    found_inf = either(found_inf, copy_to(summary.found_inf, device));
  }
  const auto norm = norms.size() > 1 ? at::linalg_vector_norm(at::stack(norms)) : norms.front();
  return {norm, found_inf, at::stack(sums).sum()};
}

at::Tensor GradientPass::norm(double norm_type) const {
  if (empty()) {
    return {};
  }
  std::vector<at::Tensor> norms;
  for (const auto& group : groups()) {
    const auto dtype = float32_or_wider(group.front().scalar_type());
    norms.push_back(copy_to(norms_of(group, norm_type, dtype), gradients_.front().owner.grad().device()));
  }
  return at::linalg_vector_norm(at::cat(norms), norm_type);
}

void GradientPass::multiply(const at::Tensor& factor) const {
  DeviceCopies factors(factor);
  for (const auto& group : groups()) {
    at::_foreach_mul_(group, factors.on(group.front().device()));
  }
}

void GradientPass::clamp(double value) const {
  for (const auto& group : groups()) {
    at::_foreach_clamp_min_(group, -value);
    at::_foreach_clamp_max_(group, value);
  }
}

at::Tensor clip_factor(const at::Tensor& total_norm, double max_norm) {
  const auto wanted = (total_norm + 1e-6).reciprocal() * max_norm;  // as Python divides a number by a tensor
  return at::clamp(wanted, /*min=*/std::nullopt, /*max=*/1.0);
}

}  // namespace mezzo
