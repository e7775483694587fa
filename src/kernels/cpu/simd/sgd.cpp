#include "kernels/cpu/simd/element_kernels.h"
#include "kernels/cpu/simd/flushed.h"

namespace mezzo::kernels::cpu::MEZZO_SIMD {
namespace {

// Both round in the places where PyTorch's vector code does.

[[gnu::always_inline]] inline float true_gradient(float gradient, float param, const SgdConstants& c) {
  const float grad = gradient * c.inv_scale * c.clip;
  return c.weight_decay != 0 ? __builtin_fmaf(param, c.weight_decay, grad) : grad;
}

void plain(float* __restrict param, const float* __restrict gradient, int64_t count, const SgdConstants& c) {
  for (int64_t i = 0; i < count; ++i) {
    param[i] = __builtin_fmaf(true_gradient(gradient[i], param[i], c), -c.lr, param[i]);
  }
}

void with_momentum(float* __restrict param,
                   const float* __restrict gradient,
                   float* __restrict buffer,
                   int64_t count,
                   const SgdConstants& c) {
  for (int64_t i = 0; i < count; ++i) {
    const float grad = true_gradient(gradient[i], param[i], c);
    const float moved = buffer[i] * c.momentum + grad;
    param[i] = __builtin_fmaf(c.nesterov ? __builtin_fmaf(moved, c.momentum, grad) : moved, -c.lr, param[i]);
    buffer[i] = flushed(moved, c.least);
  }
}

}  // namespace

void sgd(float* param, const float* gradient, float* momentum_buffer, int64_t count, const SgdConstants& c) {
  if (momentum_buffer == nullptr) {
    plain(param, gradient, count, c);
  } else {
    with_momentum(param, gradient, momentum_buffer, count, c);
  }
}

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
