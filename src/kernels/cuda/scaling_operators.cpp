#include <ATen/ops/empty.h>

#include <vector>

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda/tensor_lists.h"
#include "kernels/cuda/tensors.h"
#include "kernels/dense_layout.h"
#include "kernels/device_scalars.h"
#include "kernels/dtypes.h"

namespace mezzo::kernels::MEZZO_CUDA {
namespace {

/// Whether all of `tensors` can be walked in memory order, with the same layout.
template <class... Tensors>
bool can_run(const at::Tensor& first, const Tensors&... others) {
  return has_kernel(first.scalar_type()) && first.is_non_overlapping_and_dense() &&
         (... && (has_kernel(others.scalar_type()) && same_dense_layout(others, first)));
}

Span span_to_check(at::ScalarType kept_as) { return {nullptr, element_of(kept_as)}; }

/// Reads `gradients`, unscales them if they have memory for the result, and gives their `found_inf`.
at::Tensor run(const std::vector<Unscaled>& gradients, const ScaleOfGradients& scale) {
  const OnDeviceOf device(scale.value);
  const auto options = scale.value.options();
  int64_t blocks = 0;
  for (const Unscaled& gradient : gradients) {
    blocks += blocks_of(gradient.size);
  }
  const auto non_finite = at::empty({blocks}, options);
  float* next = number(non_finite);
  UnscaledList list{};
  list.scale = number(scale.value);
  list.looks_at_results = scale.looks_at_results();
  for_lists(
      gradients, list,
      [](UnscaledList& to, const Unscaled& gradient) {
        to.gradients[to.count] = gradient;
        return blocks_of(gradient.size);
      },
      [&](UnscaledList& filled) {
        filled.non_finite = next;
        unscale(filled, device.stream);
        next += filled.first_block[filled.count];
      });
  auto found_inf = at::empty({}, options);
  write_found_inf({number(non_finite), blocks, scale.reproduce_pytorch ? nullptr : list.scale, number(found_inf)},
                  device.stream);
  return found_inf;
}

}  // namespace

at::Tensor check_gradients(const GradientsToCheck& gradients, const ScaleOfGradients& scale) {
  std::vector<Unscaled> fast;
  GradientsToCheck others;
  for (const at::Tensor& gradient : gradients.in_place) {
    if (can_run(gradient)) {
      fast.push_back({span_of(gradient), span_to_check(gradient.scalar_type()), gradient.numel()});
    } else {
      others.in_place.push_back(gradient);
    }
  }
  for (const at::Tensor& gradient : gradients.in_float32) {
    if (can_run(gradient)) {
      fast.push_back({span_of(gradient), span_to_check(at::kFloat), gradient.numel()});
    } else {
      others.in_float32.push_back(gradient);
    }
  }
  const auto found_inf = run(fast, scale);
  const bool is_all = others.in_place.empty() && others.in_float32.empty();
  return is_all ? found_inf : either(found_inf, reference::check_gradients(others, scale));
}

at::Tensor unscale_gradients(const GradientsToUnscale& gradients, const ScaleOfGradients& scale) {
  std::vector<Unscaled> fast;
  std::vector<at::Tensor> changed;
  GradientsToUnscale others;
  for (const at::Tensor& gradient : gradients.in_place) {
    if (can_run(gradient)) {
      fast.push_back({span_of(gradient), span_of(gradient), gradient.numel()});
      changed.push_back(gradient);
    } else {
      others.in_place.push_back(gradient);
    }
  }
  for (size_t i = 0; i < gradients.into.size(); ++i) {
    const at::Tensor &half = gradients.halves[i], &into = gradients.into[i];
    if (can_run(half, into)) {
      fast.push_back({span_of(half), span_of(into), half.numel()});
      changed.push_back(into);
    } else {
      others.halves.push_back(half);
      others.into.push_back(into);
    }
  }
  const auto found_inf = run(fast, scale);
  for (const at::Tensor& tensor : changed) {  // as in-place operations do
    tensor.unsafeGetTensorImpl()->bump_version();
  }
  const bool is_all = others.in_place.empty() && others.into.empty();
  return is_all ? found_inf : either(found_inf, reference::unscale_gradients(others, scale));
}

void update_loss_scale(const LossScaleTensors& state, const at::Tensor& found_inf, const LossScaleRules& rules) {
  const OnDeviceOf device(state.scale);
  const LossScaleArguments arguments{number(state.scale), state.counts.mutable_data_ptr<int32_t>(), number(found_inf),
                                     rules};
  update_loss_scale(arguments, device.stream);
}

}  // namespace mezzo::kernels::MEZZO_CUDA
