#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <vector>

#include "kernels/dropout.h"
#include "kernels/optimizer_kernels.h"
#include "kernels/scaling_kernels.h"

namespace mezzo::kernels {

/// What computes the operators of this module on a kind of accelerator, as their specifications do.
struct DeviceKernels {
  decltype(&reference::dropout) dropout;
  decltype(&reference::adam) adam;
  decltype(&reference::sgd) sgd;
  decltype(&reference::lamb) lamb;
  decltype(&reference::rmsprop) rmsprop;
  decltype(&reference::summarize_gradients) summarize_gradients;
  decltype(&reference::check_gradients) check_gradients;
  decltype(&reference::unscale_gradients) unscale_gradients;
  decltype(&reference::update_loss_scale) update_loss_scale;
};

/// Its functions, for what a kind of device says of all of them.
#define MEZZO_FOR_DEVICE_KERNELS(what)                                                                        \
  what(dropout) what(adam) what(sgd) what(lamb) what(rmsprop) what(summarize_gradients) what(check_gradients) \
      what(unscale_gradients) what(update_loss_scale)

/// Gives a kind of accelerator its own, which live as long as the process; nullptr takes them back.
/// CUDA's are there from the beginning, where mezzo was built with them.
void set_device_kernels(c10::DeviceType device_type, const DeviceKernels* kernels);

/// Those of the device that the tensors are on; where it has none, the specifications.
namespace device {
at::Tensor dropout(const at::Tensor& x, const DropoutSite& site);
void adam(const ParameterUpdates& updates, const AdamSettings& settings, const GradientFactors& factors);
void sgd(const ParameterUpdates& updates, const SgdSettings& settings, const GradientFactors& factors);
void lamb(const ParameterUpdates& updates, const LambSettings& settings, const GradientFactors& factors);
void rmsprop(const ParameterUpdates& updates, const RmspropSettings& settings, const GradientFactors& factors);
GradientSummary summarize_gradients(const std::vector<at::Tensor>& gradients, const at::Tensor& scale, double max_norm);
at::Tensor check_gradients(const GradientsToCheck& gradients, const ScaleOfGradients& scale);
at::Tensor unscale_gradients(const GradientsToUnscale& gradients, const ScaleOfGradients& scale);
void update_loss_scale(const LossScaleTensors& state, const at::Tensor& found_inf, const LossScaleRules& rules);
}  // namespace device

}  // namespace mezzo::kernels
