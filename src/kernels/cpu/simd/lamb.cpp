#include "kernels/cpu/simd/element_kernels.h"

namespace mezzo::kernels::cpu::MEZZO_SIMD {
namespace {

constexpr int kLanes = 8;  // partial sums, so that they become vectors

}  // namespace

void lamb_moments(const float* __restrict gradient,
                  float* __restrict exp_avg,
                  float* __restrict exp_avg_sq,
                  int64_t count,
                  const LambConstants& c) {
  for (int64_t i = 0; i < count; ++i) {
    kernels::lamb_moments(gradient[i], exp_avg[i], exp_avg_sq[i], c);
  }
}

LambNorms lamb_norms(
    const float* param, const float* exp_avg, const float* exp_avg_sq, int64_t count, const LambConstants& c) {
  double of_param[kLanes] = {}, of_direction[kLanes] = {};
  int64_t i = 0;
  const auto add = [&](int64_t at, int lane) __attribute__((always_inline)) {
    const double p = param[at], d = lamb_direction(param[at], exp_avg[at], exp_avg_sq[at], c);
    of_param[lane] += p * p;
    of_direction[lane] += d * d;
  };
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      add(i + lane, lane);
    }
  }
  for (; i < count; ++i) {
    add(i, 0);
  }
  LambNorms norms{};
  for (int lane = 0; lane < kLanes; ++lane) {
    norms.param += of_param[lane];
    norms.direction += of_direction[lane];
  }
  return norms;
}

void lamb_params(float* __restrict param,
                 const float* __restrict exp_avg,
                 const float* __restrict exp_avg_sq,
                 int64_t count,
                 float step_size,
                 const LambConstants& c) {
  for (int64_t i = 0; i < count; ++i) {
    param[i] -= step_size * lamb_direction(param[i], exp_avg[i], exp_avg_sq[i], c);
  }
}

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
