#include "kernels/device_kernels.h"

#include "kernels/cuda/operators.h"
#include "kernels/per_device.h"

namespace mezzo::kernels {
namespace {

#define MEZZO_ENTRY(name) .name = reference::name,
constexpr DeviceKernels kSpecifications = {MEZZO_FOR_DEVICE_KERNELS(MEZZO_ENTRY)};
#undef MEZZO_ENTRY

PerDevice<const DeviceKernels*>& table() {
  static PerDevice<const DeviceKernels*> table{
#ifdef MEZZO_HAS_CUDA
      {c10::kCUDA, &cuda::kDeviceKernels},
#endif
  };
  return table;
}

const DeviceKernels& kernels_of(const at::Tensor& tensor) {
  const DeviceKernels* kernels = table().of(tensor.device().type());
  return kernels != nullptr ? *kernels : kSpecifications;
}

const DeviceKernels& kernels_of(const ParameterUpdates& updates) {
  return updates.empty() ? kSpecifications : kernels_of(updates.front().param);
}

}  // namespace

void set_device_kernels(c10::DeviceType device_type, const DeviceKernels* kernels) {
  table().set(device_type, kernels);
}

namespace device {

at::Tensor dropout(const at::Tensor& x, const DropoutSite& site) { return kernels_of(x).dropout(x, site); }

void adam(const ParameterUpdates& updates, const AdamSettings& settings, const GradientFactors& factors) {
  kernels_of(updates).adam(updates, settings, factors);
}

void sgd(const ParameterUpdates& updates, const SgdSettings& settings, const GradientFactors& factors) {
  kernels_of(updates).sgd(updates, settings, factors);
}

void lamb(const ParameterUpdates& updates, const LambSettings& settings, const GradientFactors& factors) {
  kernels_of(updates).lamb(updates, settings, factors);
}

void rmsprop(const ParameterUpdates& updates, const RmspropSettings& settings, const GradientFactors& factors) {
  kernels_of(updates).rmsprop(updates, settings, factors);
}

GradientSummary summarize_gradients(const std::vector<at::Tensor>& gradients,
                                    const at::Tensor& scale,
                                    double max_norm) {
  return kernels_of(gradients.front()).summarize_gradients(gradients, scale, max_norm);
}

at::Tensor check_gradients(const GradientsToCheck& gradients, const ScaleOfGradients& scale) {
  return kernels_of(scale.value).check_gradients(gradients, scale);
}

at::Tensor unscale_gradients(const GradientsToUnscale& gradients, const ScaleOfGradients& scale) {
  return kernels_of(scale.value).unscale_gradients(gradients, scale);
}

void update_loss_scale(const LossScaleTensors& state, const at::Tensor& found_inf, const LossScaleRules& rules) {
  kernels_of(state.scale).update_loss_scale(state, found_inf, rules);
}

}  // namespace device
}  // namespace mezzo::kernels
