#include "kernels/cpu/simd/element_kernels.h"
#include "kernels/cpu/simd/flushed.h"

namespace mezzo::kernels::cpu::MEZZO_SIMD {

/// Rounds in the places where PyTorch's vector code does.
void adam(float* __restrict param,
          const float* __restrict gradient,
          float* __restrict exp_avg,
          float* __restrict exp_avg_sq,
          float* __restrict max_exp_avg_sq,
          int64_t count,
          const AdamConstants& c) {
  // The mean moves from its nearer end.
  const bool from_old = c.mean_weight < 0.5f;
  const float coefficient = from_old ? c.mean_weight : c.mean_weight - 1;
  for (int64_t i = 0; i < count; ++i) {
    float grad = gradient[i] * c.inv_scale * c.clip;
    if (c.weight_decay != 0) {
      grad = __builtin_fmaf(param[i], c.weight_decay, grad);
    }
    const float mean = __builtin_fmaf(coefficient, grad - exp_avg[i], from_old ? exp_avg[i] : grad);
    const float square = __builtin_fmaf(c.square_weight * grad, grad, exp_avg_sq[i] * c.beta2);
    float largest = square;
    if (max_exp_avg_sq != nullptr) {
      largest = max_exp_avg_sq[i] >= square ? max_exp_avg_sq[i] : square;  // NaN, too
      max_exp_avg_sq[i] = flushed(largest, c.least);
    }
    const float denominator = __builtin_sqrtf(largest) / c.root_bias + c.eps;
    param[i] = param[i] * c.shrink - c.step_size * mean / denominator;
    exp_avg[i] = flushed(mean, c.least);
    exp_avg_sq[i] = flushed(square, c.least);
  }
}

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
