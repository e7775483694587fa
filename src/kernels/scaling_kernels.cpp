#include "kernels/scaling_kernels.h"

#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <type_traits>

#include "kernels/check_arguments.h"
#include "kernels/device_kernels.h"
#include "kernels/operator.h"

namespace mezzo::kernels {
namespace {

template <bool kByDevice>
at::Tensor check(at::TensorList in_place,
                 at::TensorList in_float32,
                 const at::Tensor& scale,
                 bool may_be_below_one,
                 bool reproduce_pytorch) {
  check_scale(scale, scale.device());
  check_same_device(in_place, scale.device());
  check_same_device(in_float32, scale.device());
  if (scale.is_meta()) {
    return at::empty_like(scale);
  }
  return kernels_for<kByDevice>(scale.device())
      .check_gradients({in_place.vec(), in_float32.vec()}, {scale, may_be_below_one, reproduce_pytorch});
}

const Operator<std::remove_pointer_t<decltype(&check<true>)>> check_op(
    "check_gradients(Tensor[] in_place, Tensor[] in_float32, Tensor scale, bool may_be_below_one, "
    "bool reproduce_pytorch) -> Tensor",
    kernels_of_devices<&check<true>>(),
    kernel<&check<false>>(c10::DispatchKey::CompositeExplicitAutograd),
    no_autograd());

template <bool kByDevice>
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
                      "; the result must be float32 or float64, of the same sizes");
  }
  if (scale.is_meta()) {
    return at::empty_like(scale);
  }
  return kernels_for<kByDevice>(scale.device())
      .unscale_gradients({in_place.vec(), halves.vec(), into.vec()}, {scale, may_be_below_one, reproduce_pytorch});
}

const Operator<std::remove_pointer_t<decltype(&unscale<true>)>> unscale_op(
    "unscale_gradients_(Tensor(a!)[] in_place, Tensor[] halves, Tensor(b!)[] into, Tensor scale, "
    "bool may_be_below_one, bool reproduce_pytorch) -> Tensor",
    kernels_of_devices<&unscale<true>>(),
    kernel<&unscale<false>>(c10::DispatchKey::CompositeExplicitAutograd),
    no_autograd());

/// The rules as the schema has them, in the order of the struct.
std::vector<double> list_of(const LossScaleRules& rules) {
  const auto number = [](auto value) { return static_cast<double>(value); };
  return {rules.init_scale,
          rules.growth_factor,
          rules.backoff_factor,
          number(rules.growth_interval),
          rules.min_scale,
          rules.max_scale,
          number(rules.hysteresis),
          number(rules.is_static),
          number(rules.reproduce_pytorch),
          number(rules.counts_skips_in_a_row)};
}

LossScaleRules rules_of(at::ArrayRef<double> list) {
  constexpr size_t kRules = 10;
  TORCH_CHECK_VALUE(list.size() == kRules, "mezzo: a loss scale has ", kRules, " rules, got ", list.size());
  const auto count = [&](size_t i) { return static_cast<int64_t>(list[i]); };
  return {list[0], list[1], list[2], count(3), list[4], list[5], count(6), list[7] != 0, list[8] != 0, list[9] != 0};
}

template <bool kByDevice>
void update(at::Tensor& scale, at::Tensor& counts, const at::Tensor& found_inf, at::ArrayRef<double> list) {
  TORCH_CHECK_VALUE(is_number(scale, at::kFloat, scale.device()) && is_number(found_inf, at::kFloat, scale.device()) &&
                        counts.scalar_type() == at::kInt && counts.device() == scale.device() &&
                        counts.is_contiguous() && counts.numel() == kNumLossScaleCounts,
                    "mezzo: a loss scale and found_inf must be float32 numbers, and its counts ", +kNumLossScaleCounts,
                    " int32 numbers, all of one device");
  const auto rules = rules_of(list);
  const DeviceKernels& kernels = kernels_for<kByDevice>(scale.device());
  kernels.update_loss_scale({scale, counts}, found_inf, rules);
  if (&kernels != &reference::kDeviceKernels) {  // kernels tell autograd nothing of their writes
    counts.unsafeGetTensorImpl()->bump_version();
    if (!rules.is_static) {  // else a backward after this may still read it
      scale.unsafeGetTensorImpl()->bump_version();
    }
  }
}

const Operator<std::remove_pointer_t<decltype(&update<true>)>> update_op(
    "update_loss_scale_(Tensor(a!) scale, Tensor(b!) counts, Tensor found_inf, float[] rules) -> ()",
    kernels_of_devices<&update<true>>(),
    kernel<&update<false>>(c10::DispatchKey::CompositeExplicitAutograd),
    meta_in_place(),
    no_autograd());

}  // namespace

void cpu::update_loss_scale(const LossScaleTensors& state, const at::Tensor& found_inf, const LossScaleRules& rules) {
  kernels::update_loss_scale(*state.scale.mutable_data_ptr<float>(), state.counts.mutable_data_ptr<int32_t>(),
                             *found_inf.const_data_ptr<float>() != 0, rules);
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
  auto [scale, counts] = state;
  update_op(scale, counts, found_inf, list_of(rules));
}

}  // namespace mezzo::kernels
