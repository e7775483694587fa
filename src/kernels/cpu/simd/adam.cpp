#include "kernels/cpu/simd/element_kernels.h"

namespace mezzo::kernels::cpu::MEZZO_SIMD {
namespace {

/// Two loops, since a pointer that may be null keeps the compiler from vectors.
template <bool kAmsgrad>
void update(float* __restrict param,
            const float* __restrict gradient,
            float* __restrict exp_avg,
            float* __restrict exp_avg_sq,
            float* __restrict max_exp_avg_sq,
            int64_t count,
            AdamConstants c) {
  for (int64_t i = 0; i < count; ++i) {
    adam_element(param[i], gradient[i], exp_avg[i], exp_avg_sq[i], kAmsgrad ? &max_exp_avg_sq[i] : nullptr, c);
  }
}

}  // namespace

void adam(float* param,
          const float* gradient,
          float* exp_avg,
          float* exp_avg_sq,
          float* max_exp_avg_sq,
          int64_t count,
          const AdamConstants& c) {
  const auto chosen = max_exp_avg_sq == nullptr ? update<false> : update<true>;
  chosen(param, gradient, exp_avg, exp_avg_sq, max_exp_avg_sq, count, c);
}

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
