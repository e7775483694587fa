#include "kernels/scaling_kernels.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <type_traits>

#include "kernels/check_arguments.h"
#include "kernels/device_kernels.h"
#include "kernels/operator.h"

namespace mezzo::kernels {
namespace {

using CheckKernel = at::Tensor(const GradientsToCheck&, const ScaleOfGradients&);
using UnscaleKernel = at::Tensor(const GradientsToUnscale&, const ScaleOfGradients&);
using LossScaleKernel = void(const LossScaleTensors&, const at::Tensor&, const LossScaleRules&);

template <CheckKernel& kKernel>
at::Tensor check(at::TensorList in_place,
                 at::TensorList in_float32,
                 const at::Tensor& scale,
                 bool may_be_below_one,
                 bool reproduce_pytorch) {
  check_scale(scale, scale.device());
  check_same_device(in_place, scale.device());
  check_same_device(in_float32, scale.device());
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
  check_scale(scale, scale.device());
  for (const at::TensorList tensors : {in_place, halves, into}) {
    check_same_device(tensors, scale.device());
  }
  for (size_t i = 0; i < into.size(); ++i) {
    TORCH_CHECK_VALUE((into[i].scalar_type() == at::kFloat || into[i].scalar_type() == at::kDouble) &&
                          into[i].sizes() == halves[i].sizes(),
                      "mezzo: gradient ", i, " of sizes ", halves[i].sizes(), " cannot be unscaled into ",
                      into[i].scalar_type(), " of sizes ", into[i].sizes(),
                      "; it must be float32 or float64, of the same sizes");
  }
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
  const auto is_one = [&](const at::Tensor& tensor, at::ScalarType dtype) {
    return is_number(tensor, dtype, scale.device());
  };
  const bool fits = is_one(scale, at::kFloat) && is_one(growth_tracker, at::kInt) &&
                    is_one(hysteresis_tracker, at::kInt) && is_one(skips_in_a_row, at::kInt) &&
                    is_one(skipped, at::kLong) && is_one(found_inf, at::kFloat);
  TORCH_CHECK_VALUE(fits,
                    "mezzo: a loss scale and found_inf must be float32, its trackers int32 and its count of skipped "
                    "iterations int64, each one number of one device");
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
          state.skipped.mutable_data_ptr<int64_t>()};
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
