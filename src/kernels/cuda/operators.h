#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/cuda/namespace.h"
#include "kernels/device_kernels.h"
#include "kernels/dropout_site.h"
#include "kernels/optimizer_kernels.h"
#include "kernels/scaling_kernels.h"

/// What the operators of kernels/ run on a CUDA device, launched on its current stream;
/// nothing waits for the device.
namespace mezzo::kernels::MEZZO_CUDA {

/// One application of the mask, without autograd. `x`: float32, bfloat16 or float16, contiguous.
at::Tensor dropout(const at::Tensor& x, const DropoutSite& site);

/// As the CPU's: tensors of one device, those of one update of one dense layout; float32, bfloat16 or float16, moments
/// and factors float32. `updates` are not empty.
void adam(const ParameterUpdates& updates, const AdamSettings& settings, const GradientFactors& factors);
void sgd(const ParameterUpdates& updates, const SgdSettings& settings, const GradientFactors& factors);
void lamb(const ParameterUpdates& updates, const LambSettings& settings, const GradientFactors& factors);
void rmsprop(const ParameterUpdates& updates, const RmspropSettings& settings, const GradientFactors& factors);
GradientSummary summarize_gradients(const std::vector<at::Tensor>& gradients, const at::Tensor& scale, double max_norm);

/// Float32, bfloat16 and float16 gradients whose elements lie without gaps, in any mix; all
/// others are left to the specification.
at::Tensor check_gradients(const GradientsToCheck& gradients, const ScaleOfGradients& scale);
at::Tensor unscale_gradients(const GradientsToUnscale& gradients, const ScaleOfGradients& scale);
void update_loss_scale(const LossScaleTensors& state, const at::Tensor& found_inf, const LossScaleRules& rules);

extern const DeviceKernels kDeviceKernels;

}  // namespace mezzo::kernels::MEZZO_CUDA
