#include "kernels/cpu/simd/element_kernels.h"

namespace mezzo::kernels::cpu::MEZZO_SIMD {
namespace {

void plain(float* __restrict param, const float* __restrict gradient, int64_t count, SgdConstants c) {
  for (int64_t i = 0; i < count; ++i) {
    sgd_element(param[i], gradient[i], nullptr, c);
  }
}

void with_momentum(float* __restrict param,
                   const float* __restrict gradient,
                   float* __restrict buffer,
                   int64_t count,
                   SgdConstants c) {
  for (int64_t i = 0; i < count; ++i) {
    sgd_element(param[i], gradient[i], &buffer[i], c);
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
