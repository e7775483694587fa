#include "kernels/cpu/simd/element_kernels.h"

namespace mezzo::kernels::cpu::MEZZO_SIMD {
namespace {

template <bool kMomentum, bool kCentered>
void update(float* __restrict param,
            const float* __restrict gradient,
            float* __restrict square_avg,
            float* __restrict momentum_buffer,
            float* __restrict grad_avg,
            int64_t count,
            RmspropConstants c) {
  for (int64_t i = 0; i < count; ++i) {
    rmsprop_element(param[i], gradient[i], square_avg[i], kMomentum ? &momentum_buffer[i] : nullptr,
                    kCentered ? &grad_avg[i] : nullptr, c);
  }
}

}  // namespace

void rmsprop(float* param,
             const float* gradient,
             float* square_avg,
             float* momentum_buffer,
             float* grad_avg,
             int64_t count,
             const RmspropConstants& c) {
  const auto chosen = momentum_buffer == nullptr ? (grad_avg == nullptr ? update<false, false> : update<false, true>)
                                                 : (grad_avg == nullptr ? update<true, false> : update<true, true>);
  chosen(param, gradient, square_avg, momentum_buffer, grad_avg, count, c);
}

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
