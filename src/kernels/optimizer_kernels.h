#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/parameter_update.h"
#include "kernels/update_elements.h"

/// One optimizer step over many tensors of one device, without autograd, in float32 (float64 for float64 parameters).
/// One pass computes gradient * inv_scale * clip, the update, and the rounding of `param` and `half_copy`. Gradients
/// are read only. Results do not depend on the number of threads.
///
/// Fast kernels take each parameter that is dense (channels_last too) and whose slots and half copy have
/// the same layout, as `at::zeros_like` gives them. A gradient of another layout is copied into the
/// parameter's first. Stochastic rounding numbers the elements as they lie in memory.
///
/// mezzo's kernels of `adam`, `sgd` and `rmsprop` store a float32 moment below the smallest normal number as 0. Moments
/// of an embedding that is no longer looked up decay into denormals, which cost some processors a hundred times a
/// normal product. The update itself still uses the moment before the flush, and no bit of a weight above 1e-19 in
/// magnitude depends on it (see `flushes_denormals`). `lamb` keeps denormals, since its steps are as long for the
/// smallest direction as for any other. So does the specification on accelerators, which lose no time by them.
namespace mezzo::kernels {

using ParameterUpdates = std::vector<ParameterUpdate>;

/// Whether `eps` hides the loss of a second moment with this decay when denormals are flushed.
inline bool hides_denormals(double eps, double decay) {
  constexpr double kSmallest = std::numeric_limits<float>::min(), kHalfUlp = 0x1p-25;
  return eps * kHalfUlp >= std::sqrt(kSmallest / (1 - decay));
}
/// Whether `adam` can flush denormals unseen, as it can unless `eps` is tiny or 0. Flushing the second moment loses
/// less than smallest_normal / (1 - beta2). Its root must be lost anyway when `eps` is added to it. The loss of the
/// first moment moves a weight by less than lr * smallest_normal / (1 - beta1) / eps.
inline bool flushes_denormals(const AdamSettings& settings) { return hides_denormals(settings.eps, settings.beta2); }
/// As `adam`. Not if `centered`: the difference of two moments may become negative.
inline bool flushes_denormals(const RmspropSettings& settings) {
  return !settings.centered && hides_denormals(settings.eps, settings.alpha);
}

/// Slots: exp_avg, exp_avg_sq, and max_exp_avg_sq with amsgrad. Needs a step count.
void adam(const ParameterUpdates& updates, const AdamSettings& settings, const GradientFactors& factors);

/// Slots: momentum_buffer, unless momentum is 0. Needs a step count to round stochastically, and
/// with momentum and dampening: the first step, whose gradient is not dampened, has the count 0. Takes sparse
/// gradients (COO): without momentum and weight decay, only their rows of float32 and float64 parameters change.
void sgd(const ParameterUpdates& updates, const SgdSettings& settings, const GradientFactors& factors);

/// Slots: square_avg, then momentum_buffer unless momentum is 0, then grad_avg if centered. Counts
/// steps if updates have counts; needs them to round stochastically.
void rmsprop(const ParameterUpdates& updates, const RmspropSettings& settings, const GradientFactors& factors);

/// As `adam`. Norms of parameters and directions are summed in double.
void lamb(const ParameterUpdates& updates, const LambSettings& settings, const GradientFactors& factors);

/// The fields of torch.optim.Muon.
struct MuonSettings {
  double momentum;
  bool nesterov;
  std::array<double, 3> ns_coefficients;
  double eps;
  int64_t ns_steps;
  bool matches_rms_adamw;  ///< adjust_lr_fn "match_rms_adamw"; else "original"
};

/// Matrices alone. Slots: momentum_buffer. In ATen operations: products take most of the time.
void muon(const ParameterUpdates& updates, const MuonSettings& settings, const GradientFactors& factors);

/// 0-dim tensors on the gradients' device: the sum in float64, norm and clip as well if a gradient is
/// float64, all others in float32.
struct GradientSummary {
  at::Tensor norm;            ///< total L2 norm of the gradients divided by the scale; summed in double
  at::Tensor found_inf;       ///< 1 if that norm is inf or NaN, as it is where any gradient is, or the scale is lost
  at::Tensor sum_of_squares;  ///< of the gradients divided by the scale, float64: to go on adding
  at::Tensor inv_scale;       ///< 1 / scale
  at::Tensor clip;            ///< factor that brings the norm down to `max_norm`; 1 if the norm is less
};

/// Reads each gradient once. `gradients`: dense, floating, of one device, at least one; `scale`: float32, 0-dim, of
/// that device; undefined means 1. A scale is lost if it or its reciprocal is not finite.
GradientSummary summarize_gradients(const std::vector<at::Tensor>& gradients, const at::Tensor& scale, double max_norm);

/// In ATen operations, for any device and dtype.
namespace reference {
void muon(const ParameterUpdates& updates, const MuonSettings& settings, const GradientFactors& factors);

/// float32 `values` as bfloat16, rounded up with a probability equal to the fraction lost by
/// rounding down. Element i draws half-word i % 8 (low half of word 0 first) of Philox block i / 8,
/// counter {block low, block high, step, site}.
at::Tensor round_stochastically(const at::Tensor& values, const at::Tensor& step, uint64_t seed, uint32_t site);
}  // namespace reference

/// Keys the rounding of `update.param`, apart from dropout under the same seed: the parameter's index is the site.
inline uint64_t rounding_key_seed(const ParameterUpdate& update) { return *update.rounding_seed ^ 0x5B8F3C2E9D6A1705; }

}  // namespace mezzo::kernels
