#include "scaling/gradient_pass.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <limits>

#include "kernels/device_scalars.h"

namespace mezzo {
namespace {

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

/// A gradient as kernels want it; the values, where it is sparse.
at::Tensor values_of(const at::Tensor& gradient) { return gradient.is_sparse() ? gradient._values() : gradient; }

/// Whether inf or NaN is in `groups`, which are multiplied by `factor`.
void check_and_multiply(const GradientGroups& groups, DeviceCopies& factor, DeviceCopies& found_inf) {
  for (const GradientGroup& group : groups) {
    at::_amp_foreach_non_finite_check_and_unscale_(group.gradients, found_inf.on(group.device),
                                                   factor.on(group.device));
  }
}

/// The largest magnitudes in `group` times `inv_scale`, as `dtype` holds them: finite iff all unscaled gradients are.
at::Tensor unscaled_magnitudes(const GradientGroup& group, const at::Tensor& inv_scale, at::ScalarType dtype) {
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
  const auto unscaled = norms.to(group.dtype == at::kDouble ? at::kDouble : at::kFloat) * inv_scale;
  return unscaled.to(dtype).to(unscaled.scalar_type());
}

/// 1, or not finite where the scale or its reciprocal is not: then no gradient means anything.
at::Tensor scale_times_inverse(const at::Tensor& scale) { return scale * inverse_of(scale); }

}  // namespace

GradientPass::GradientPass(AmpOptimizer& optimizer, Use use) : use_(use) {
  const c10::NoGradGuard no_grad;
  const bool half_allowed = use == Use::kStepScaled || optimizer.allows_half_gradients();
  size_t index = 0;
  optimizer.visit_parameters([&](at::Tensor& parameter) {
    if (parameter.grad().defined()) {
      const auto master = use == Use::kUnscale ? optimizer.master_of(index) : at::Tensor();
      check_gradient(optimizer, index, parameter.grad(), half_allowed || master.defined());
      gradients_.push_back({parameter, master});
    }
    ++index;
  });
  for (Gradient& gradient : gradients_) {
    at::Tensor& values = gradient.owner.mutable_grad();
    if (values.is_sparse() && values.scalar_type() == at::kHalf) {
      values = values.coalesce();  // sums entries of equal index, which may overflow: check what comes out
    }
  }
}

at::Tensor GradientPass::check(const ScaleOfGradients& scale) const {
  if (gradients_.empty()) {
    return {};
  }
  const c10::NoGradGuard no_grad;
  GradientGroups in_place, in_float32;  // by where unscaled gradients are to be kept
  for (const auto& [owner, master] : gradients_) {
    const bool keeps_dtype = use_ == Use::kUnscale && !master.defined();
    (keeps_dtype ? in_place : in_float32).add(values_of(owner.grad()));
  }
  if (!scale.reproduce_pytorch) {
    in_float32.add(scale_times_inverse(scale.value));
  }
  const bool looks_twice = !scale.reproduce_pytorch && scale.may_be_below_one;
  DeviceCopies one(at::ones({}, scale.value.options())), found_inf(at::zeros({}, scale.value.options()));
  DeviceCopies inv_scale(inverse_of(scale.value));
  for (const GradientGroups* groups : {&in_place, &in_float32}) {
    check_and_multiply(*groups, one, found_inf);
    if (!looks_twice) {
      continue;
    }
    for (const GradientGroup& group : *groups) {
      const auto kept_as = groups == &in_place || group.dtype == at::kDouble ? group.dtype : at::kFloat;
      GradientGroups magnitudes;
      magnitudes.add(unscaled_magnitudes(group, inv_scale.on(group.device), kept_as));
      check_and_multiply(magnitudes, one, found_inf);
    }
  }
  return found_inf.maximum();  // not the sum: fused kernels skip on exactly 1
}

at::Tensor GradientPass::unscale(const ScaleOfGradients& scale) {
  if (gradients_.empty()) {
    return {};
  }
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> unscaled;
  GradientGroups groups;
  for (const auto& [owner, master] : gradients_) {
    unscaled.push_back(master.defined() ? owner.grad().to(at::kFloat) : owner.grad());
    groups.add(values_of(unscaled.back()));
  }
  if (!scale.reproduce_pytorch) {
    groups.add(scale_times_inverse(scale.value));
  }
  DeviceCopies one(at::ones({}, scale.value.options())), found_inf(at::zeros({}, scale.value.options()));
  DeviceCopies inv_scale(inverse_of(scale.value));
  check_and_multiply(groups, inv_scale, found_inf);
  if (!scale.reproduce_pytorch && scale.may_be_below_one) {  // unscaling multiplies: look at what comes out
    check_and_multiply(groups, one, found_inf);
  }
  for (size_t i = 0; i < gradients_.size(); ++i) {
    auto& [owner, master] = gradients_[i];
    if (master.defined()) {
      master.mutable_grad() = unscaled[i];
      owner.mutable_grad().reset();
    }
  }
  return found_inf.maximum();
}

}  // namespace mezzo
