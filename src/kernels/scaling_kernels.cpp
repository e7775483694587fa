#include "kernels/scaling_kernels.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <type_traits>

#include "kernels/device_kernels.h"
#include "kernels/operator.h"

namespace mezzo::kernels {
namespace {

using CheckKernel = at::Tensor(const GradientsToCheck&, const ScaleOfGradients&);
using UnscaleKernel = at::Tensor(const GradientsToUnscale&, const ScaleOfGradients&);
using LossScaleKernel = void(const LossScaleTensors&, const at::Tensor&, const LossScaleRules&);

bool is_number(const at::Tensor& tensor, at::ScalarType dtype, const at::Tensor& beside) {
  return tensor.numel() == 1 && tensor.scalar_type() == dtype && tensor.device() == beside.device();
}

template <CheckKernel& kKernel>
at::Tensor check(at::TensorList in_place,
                 at::TensorList in_float32,
                 const at::Tensor& scale,
                 bool may_be_below_one,
                 bool reproduce_pytorch) {
  return kKernel({in_place.vec(), in_float32.vec()}, {scale, may_be_below_one, reproduce_pytorch});
}

at::Tensor check_nothing(
    at::TensorList /*in_place*/, at::TensorList /*in_float32*/, const at::Tensor& scale, bool, bool) {
  return at::empty({}, scale.options());
}

const Operator<decltype(check_nothing)> check_op(
    "check_gradients(Tensor[] in_place, Tensor[] in_float32, Tensor scale, bool may_be_below_one, "
    "bool reproduce_pytorch) -> Tensor",
    accelerator_kernels<&check<device::check_gradients>>(),
    kernel<&check<reference::check_gradients>>(c10::DispatchKey::CompositeExplicitAutograd),
    kernel<&check_nothing>(c10::DispatchKey::Meta),
    no_autograd());

template <UnscaleKernel& kKernel>
at::Tensor unscale(at::TensorList in_place,
                   at::TensorList halves,
                   at::TensorList into,
                   const at::Tensor& scale,
                   bool may_be_below_one,
                   bool reproduce_pytorch) {
  TORCH_CHECK_VALUE(halves.size() == into.size(), "mezzo: ", halves.size(), " half gradients cannot be unscaled into ",
                    into.size(), " tensors");
  return kKernel({in_place.vec(), halves.vec(), into.vec()}, {scale, may_be_below_one, reproduce_pytorch});
}

at::Tensor unscale_nothing(at::TensorList /*in_place*/,
                           at::TensorList /*halves*/,
                           at::TensorList /*into*/,
                           const at::Tensor& scale,
                           bool /*may_be_below_one*/,
                           bool /*reproduce_pytorch*/) {
  return at::empty({}, scale.options());
}

const Operator<decltype(unscale_nothing)> unscale_op(
    "unscale_gradients_(Tensor(a!)[] in_place, Tensor[] halves, Tensor(b!)[] into, Tensor scale, "
    "bool may_be_below_one, bool reproduce_pytorch) -> Tensor",
    accelerator_kernels<&unscale<device::unscale_gradients>>(),
    kernel<&unscale<reference::unscale_gradients>>(c10::DispatchKey::CompositeExplicitAutograd),
    kernel<&unscale_nothing>(c10::DispatchKey::Meta),
    no_autograd());

void update_on_cpu(const LossScaleTensors& state, const at::Tensor& found_inf, const LossScaleRules& rules) {
  update_loss_scale(numbers_of(state), *found_inf.const_data_ptr<float>() != 0, rules);
}

/// @tparam kInPlace  whether the kernel tells autograd nothing of what it writes to
template <LossScaleKernel& kKernel, bool kInPlace>
void update(at::Tensor& scale,
            at::Tensor& growth_tracker,
            at::Tensor& hysteresis_tracker,
            at::Tensor& skips_in_a_row,
            at::Tensor& skipped,
            const at::Tensor& found_inf,
            double growth_factor,
            double backoff_factor,
            int64_t growth_interval,
            int64_t hysteresis,
            double min_scale,
            double max_scale,
            bool is_static,
            bool counts_skips_in_a_row,
            bool reproduce_pytorch) {
  const bool fits = is_number(scale, at::kFloat, scale) && is_number(growth_tracker, at::kInt, scale) &&
                    is_number(hysteresis_tracker, at::kInt, scale) && is_number(skips_in_a_row, at::kInt, scale) &&
                    is_number(skipped, at::kDouble, scale) && is_number(found_inf, at::kFloat, scale);
  TORCH_CHECK_VALUE(fits,
                    "mezzo: a loss scale and found_inf must be float32, its trackers int32 and its count of skipped "
                    "iterations float64, each one number of one device");
  kKernel({scale, growth_tracker, hysteresis_tracker, skips_in_a_row, skipped}, found_inf,
          {growth_factor, backoff_factor, growth_interval, hysteresis, min_scale, max_scale, is_static,
           counts_skips_in_a_row, reproduce_pytorch});
  if (kInPlace) {
    for (const at::Tensor& changed : {growth_tracker, hysteresis_tracker, skips_in_a_row, skipped}) {
      changed.unsafeGetTensorImpl()->bump_version();
    }
    if (!is_static) {  // else a backward after this may still read it
      scale.unsafeGetTensorImpl()->bump_version();
    }
  }
}

const Operator<std::remove_pointer_t<decltype(&update<update_on_cpu, true>)>> update_op(
    "update_loss_scale_(Tensor(a!) scale, Tensor(b!) growth_tracker, Tensor(c!) hysteresis_tracker, "
    "Tensor(d!) skips_in_a_row, Tensor(e!) skipped, Tensor found_inf, float growth_factor, float backoff_factor, "
    "int growth_interval, int hysteresis, float min_scale, float max_scale, bool is_static, "
    "bool counts_skips_in_a_row, bool reproduce_pytorch) -> ()",
    kernel<&update<update_on_cpu, true>>(c10::DispatchKey::CPU),
    accelerator_kernels<&update<device::update_loss_scale, true>>(),
    kernel<&update<reference::update_loss_scale, false>>(c10::DispatchKey::CompositeExplicitAutograd),
    meta_in_place(),
    no_autograd());

}  // namespace

LossScaleNumbers numbers_of(const LossScaleTensors& state) {
  return {state.scale.mutable_data_ptr<float>(), state.growth_tracker.mutable_data_ptr<int32_t>(),
          state.hysteresis_tracker.mutable_data_ptr<int32_t>(), state.skips_in_a_row.mutable_data_ptr<int32_t>(),
          state.skipped.mutable_data_ptr<double>()};
}

at::Tensor check_gradients(const GradientsToCheck& gradients, const ScaleOfGradients& scale) {
  return check_op(gradients.in_place, gradients.in_float32, scale.value, scale.may_be_below_one,
                  scale.reproduce_pytorch);
}

at::Tensor unscale_gradients(const GradientsToUnscale& gradients, const ScaleOfGradients& scale) {
  return unscale_op(gradients.in_place, gradients.halves, gradients.into, scale.value, scale.may_be_below_one,
                    scale.reproduce_pytorch);
}

void update_loss_scale(const LossScaleTensors& state, const at::Tensor& found_inf, const LossScaleRules& rules) {
  auto [scale, growth_tracker, hysteresis_tracker, skips_in_a_row, skipped] = state;
  update_op(scale, growth_tracker, hysteresis_tracker, skips_in_a_row, skipped, found_inf, rules.growth_factor,
            rules.backoff_factor, rules.growth_interval, rules.hysteresis, rules.min_scale, rules.max_scale,
            rules.is_static, rules.counts_skips_in_a_row, rules.reproduce_pytorch);
}

}  // namespace mezzo::kernels
