#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <type_traits>
#include <vector>

#include "kernels/optimizer_kernels.h"
#include "kernels/scaling_kernels.h"

namespace mezzo::kernels {

/// Updates of one device; not empty.
template <class Settings>
using UpdateKernel = void(const ParameterUpdates& updates, const Settings& settings, const GradientFactors& factors);

/// What computes the operators of this module on a type of devices, with the results of `reference`.
/// Nothing waits for the device. Updates and gradients are dense, in float32, bfloat16 or float16, and the
/// tensors of one update have one layout. Moments and factors are float32.
struct DeviceKernels {
  UpdateKernel<AdamSettings>* adam;
  UpdateKernel<SgdSettings>* sgd;
  UpdateKernel<LambSettings>* lamb;
  UpdateKernel<RmspropSettings>* rmsprop;
  GradientSummary (*summarize_gradients)(const std::vector<at::Tensor>& gradients,
                                         const at::Tensor& scale,
                                         double max_norm);
  void (*update_loss_scale)(const LossScaleTensors& state, const at::Tensor& found_inf, const LossScaleRules& rules);
  /// Of any layout and dtype, as the next.
  at::Tensor (*check_gradients)(const GradientsToCheck& gradients, const ScaleOfGradients& scale);
  at::Tensor (*unscale_gradients)(const GradientsToUnscale& gradients, const ScaleOfGradients& scale);
};

#define MEZZO_FOR_CPU_KERNELS(what) \
  what(adam) what(sgd) what(lamb) what(rmsprop) what(summarize_gradients) what(update_loss_scale)
#define MEZZO_FOR_DEVICE_KERNELS(what) MEZZO_FOR_CPU_KERNELS(what) what(check_gradients) what(unscale_gradients)
#define MEZZO_DECLARE_KERNEL(name) std::remove_pointer_t<decltype(DeviceKernels::name)> name;

/// The specifications: ATen operations, for any device, layout and dtype.
namespace reference {
MEZZO_FOR_DEVICE_KERNELS(MEZZO_DECLARE_KERNEL)
extern const DeviceKernels kDeviceKernels;
}  // namespace reference

namespace cpu {
MEZZO_FOR_CPU_KERNELS(MEZZO_DECLARE_KERNEL)
using reference::check_gradients;
using reference::unscale_gradients;
extern const DeviceKernels kDeviceKernels;
}  // namespace cpu

/// Gives a type of devices its own, which live as long as the process; nullptr takes them back.
/// The CPU has kernels from the beginning, and CUDA, if there is a libmezzo_cuda.so.
void set_device_kernels(c10::DeviceType device_type, const DeviceKernels* kernels);

/// The kernels of a device; if it has none, the specifications.
const DeviceKernels& device_kernels(c10::Device device);

/// The same, or always the specifications.
template <bool kByDevice>
const DeviceKernels& kernels_for(c10::Device device) {
  return kByDevice ? device_kernels(device) : reference::kDeviceKernels;
}

}  // namespace mezzo::kernels
