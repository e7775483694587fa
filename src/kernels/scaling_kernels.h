#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/scaling_elements.h"

/// The computations of a GradScaler, without autograd; nothing waits for the device. `found_inf` is 1 or 0: float32,
/// 0-dim.
namespace mezzo::kernels {

/// The loss scale as kernels over gradients take it.
struct ScaleOfGradients {
  at::Tensor value;  ///< float32, 0-dim
  /// Unscaling may make a finite gradient inf then, so that its results are looked at, too.
  bool may_be_below_one;
  /// Such results, and a scale without finite reciprocal, go unnoticed, as in torch.amp.GradScaler.
  bool reproduce_pytorch;

  bool looks_at_results() const { return may_be_below_one && !reproduce_pytorch; }
};

/// Dense, floating gradients of the scale's device. `in_place` are to keep their dtype when they
/// are unscaled, `in_float32` not, unless they are float64.
struct GradientsToCheck {
  std::vector<at::Tensor> in_place, in_float32;
};

/// Whether inf or NaN is in a gradient, or in what unscaling makes of it. Reads each once and
/// changes none.
at::Tensor check_gradients(const GradientsToCheck& gradients, const ScaleOfGradients& scale);

/// Gradients as above. `halves[i]`, float16 or bfloat16, is not changed: its quotient goes to
/// `into[i]`, float32, of its sizes.
struct GradientsToUnscale {
  std::vector<at::Tensor> in_place, halves, into;
};

/// Divides every gradient by the scale, and returns the `found_inf` of `check_gradients`.
at::Tensor unscale_gradients(const GradientsToUnscale& gradients, const ScaleOfGradients& scale);

/// Tensors of one device, changed in place.
struct LossScaleTensors {
  at::Tensor scale;   ///< float32, 0-dim
  at::Tensor counts;  ///< int32, [kNumLossScaleCounts]
};

/// Ends an iteration: 1 in `found_inf` backs off, 0 counts towards growth. `found_inf`: of their
/// device.
void update_loss_scale(const LossScaleTensors& state, const at::Tensor& found_inf, const LossScaleRules& rules);

}  // namespace mezzo::kernels
