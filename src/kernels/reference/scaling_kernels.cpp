#include <ATen/ATen.h>

#include <limits>
#include <utility>

#include "kernels/device_kernels.h"
#include "kernels/device_scalars.h"
#include "kernels/grouped.h"
#include "kernels/reference/gradient_norms.h"

namespace mezzo::kernels::reference {
namespace {

auto dtype_of(const at::Tensor& tensor) { return tensor.scalar_type(); }

/// Whether inf or NaN is in `tensors`, which are multiplied by `factor`. LibTorch has the operator for
/// bfloat16 on CPUs alone.
void check_and_multiply(const std::vector<at::Tensor>& tensors, const at::Tensor& factor, at::Tensor& found_inf) {
  for (const auto& group : grouped(tensors, dtype_of)) {
    if (dtype_of(group.front()) != at::kBFloat16 || group.front().is_cpu()) {
      at::_amp_foreach_non_finite_check_and_unscale_(group, found_inf, factor);
      continue;
    }
    std::vector<at::Tensor> wide;
    for (const at::Tensor& tensor : group) {
      wide.push_back(tensor.to(at::kFloat));
    }
    at::_amp_foreach_non_finite_check_and_unscale_(wide, found_inf, factor);
    for (size_t i = 0; i < group.size(); ++i) {
      group[i].copy_(wide[i]);
    }
  }
}

/// Whether inf or NaN is in `tensors`. On a GPU LibTorch's operator looks at float64 as float32 has it, where 1e39 is
/// infinite.
void check(const std::vector<at::Tensor>& tensors, at::Tensor& found_inf) {
  for (const auto& group : grouped(tensors, dtype_of)) {
    if (dtype_of(group.front()) != at::kDouble) {
      check_and_multiply(group, at::ones({}, found_inf.options()), found_inf);
      continue;
    }
    for (const at::Tensor& tensor : group) {
      found_inf.copy_(found_inf.logical_or(tensor.isfinite().all().logical_not()));
    }
  }
}

/// The largest magnitudes in `group` times `inv_scale`, as `dtype` holds them: finite iff
/// all unscaled gradients are.
at::Tensor unscaled_magnitudes(const std::vector<at::Tensor>& group,
                               const at::Tensor& inv_scale,
                               at::ScalarType dtype) {
  const auto wide = float32_or_wider(dtype_of(group.front()));
  return (gradient_norms(group, std::numeric_limits<double>::infinity(), wide) * inv_scale).to(dtype).to(wide);
}

/// 1, or not finite if the scale or its reciprocal is not.
at::Tensor scale_times_inverse(const at::Tensor& scale) { return scale * inverse_of(scale); }

}  // namespace

at::Tensor gradient_norms(std::vector<at::Tensor> gradients, double norm_type, at::ScalarType dtype) {
  const auto options = gradients.front().options().dtype(dtype);
  std::erase_if(gradients, [](const at::Tensor& gradient) { return gradient.numel() == 0; });
  return gradients.empty() ? at::zeros({1}, options) : at::stack(at::_foreach_norm(gradients, norm_type, dtype));
}

at::Tensor check_gradients(const GradientsToCheck& gradients, const ScaleOfGradients& scale) {
  std::vector<at::Tensor> finite_if_all_are;
  if (!scale.reproduce_pytorch) {
    finite_if_all_are.push_back(scale_times_inverse(scale.value));
  }
  for (const auto* part : {&gradients.in_place, &gradients.in_float32}) {
    if (!scale.looks_at_results()) {
      finite_if_all_are.insert(finite_if_all_are.end(), part->begin(), part->end());
      continue;
    }
    for (const auto& group : grouped(*part, dtype_of)) {
      const auto dtype = dtype_of(group.front());
      const auto kept_as = part == &gradients.in_place ? dtype : float32_or_wider(dtype);
      finite_if_all_are.push_back(unscaled_magnitudes(group, inverse_of(scale.value), kept_as));
    }
  }
  auto found_inf = at::zeros({}, scale.value.options());
  if (scale.reproduce_pytorch) {
    check_and_multiply(finite_if_all_are, at::ones({}, scale.value.options()), found_inf);
  } else {
    check(finite_if_all_are, found_inf);
  }
  return found_inf;
}

at::Tensor unscale_gradients(const GradientsToUnscale& gradients, const ScaleOfGradients& scale) {
  auto values = gradients.in_place;
  for (size_t i = 0; i < gradients.into.size(); ++i) {
    values.push_back(gradients.into[i].copy_(gradients.halves[i]));
  }
  if (!scale.reproduce_pytorch) {
    values.push_back(scale_times_inverse(scale.value));
  }
  auto found_inf = at::zeros({}, scale.value.options());
  check_and_multiply(values, inverse_of(scale.value), found_inf);  // as they come, by PyTorch's rules: see check()
  if (scale.looks_at_results()) {                                  // unscaling multiplies: look at the results
    check(values, found_inf);
  }
  return found_inf;
}

void update_loss_scale(const LossScaleTensors& state, const at::Tensor& found_inf, const LossScaleRules& rules) {
  const auto overflowed = found_inf != 0;
  auto growth_tracker = state.counts[kGrowthTracker], hysteresis_tracker = state.counts[kHysteresisTracker];
  if (!rules.is_static) {
    if (!rules.reproduce_pytorch) {
      growth_tracker.clamp_max_(rules.growth_interval - 1);  // LibTorch's kernel grows on equality alone
    }
    auto scale = state.scale;
    const auto previous_scale = rules.hysteresis > 1 ? scale.clone() : at::Tensor();
    at::_amp_update_scale_(scale, growth_tracker, found_inf, rules.growth_factor, rules.backoff_factor,
                           rules.growth_interval);
    if (rules.hysteresis > 1) {
      const auto left = (hysteresis_tracker - 1).clamp_min_(0);
      hysteresis_tracker.copy_(at::where(overflowed, left, rules.hysteresis));
      const auto backs_off_later = overflowed.logical_and(hysteresis_tracker > 0);
      scale.copy_(at::where(backs_off_later, previous_scale, scale));
    }
    if (!rules.reproduce_pytorch) {
      scale.clamp_(rules.min_scale, rules.max_scale);
    }
  }
  if (rules.counts_skips_in_a_row) {
    state.counts[kSkipsInARow].add_(1).mul_(overflowed);
  }
  state.counts[kSkipped].add_(overflowed);
}

}  // namespace mezzo::kernels::reference
