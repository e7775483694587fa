#include "kernels/cpu/simd/element_kernels.h"

namespace mezzo::kernels::cpu::MEZZO_SIMD {
namespace {

template <bool kMomentum>
void update(float* __restrict param,
            const float* __restrict gradient,
            float* __restrict buffer,
            int64_t count,
            SgdConstants c) {
  for (int64_t i = 0; i < count; ++i) {
    sgd_element(param[i], gradient[i], kMomentum ? &buffer[i] : nullptr, c);
  }
}

}  // namespace

void sgd(float* param, const float* gradient, float* momentum_buffer, int64_t count, const SgdConstants& c) {
  (momentum_buffer == nullptr ? update<false> : update<true>)(param, gradient, momentum_buffer, count, c);
}

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
