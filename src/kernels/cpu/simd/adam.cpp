#include "kernels/cpu/simd/element_kernels.h"

namespace mezzo::kernels::cpu::MEZZO_SIMD {

void adam(float* __restrict param,
          const float* __restrict gradient,
          float* __restrict exp_avg,
          float* __restrict exp_avg_sq,
          float* __restrict max_exp_avg_sq,
          int64_t count,
          const AdamConstants& constants) {
  const AdamConstants c = constants;  // which nothing that is written can be
  for (int64_t i = 0; i < count; ++i) {
    adam_element(param[i], gradient[i], exp_avg[i], exp_avg_sq[i],
                 max_exp_avg_sq != nullptr ? &max_exp_avg_sq[i] : nullptr, c);
  }
}

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
