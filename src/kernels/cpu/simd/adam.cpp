#include "kernels/cpu/simd/element_kernels.h"
#include "kernels/cpu/simd/simd.h"

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

constexpr int64_t kBlock = 64;  // elements that stay in registers or in the L1 cache for all steps

/// Whether a step without a gradient only shrinks the weights and the second moment. Not for a NaN.
bool is_at_rest(const float* exp_avg, const float* exp_avg_sq, const AdamConstants& c) {
  int is = c.eps > 0 && c.weight_decay == 0;
  for (int64_t i = 0; i < kBlock; ++i) {
    is &= int{exp_avg[i] == 0} & int{exp_avg_sq[i] >= 0} & int{exp_avg_sq[i] <= __FLT_MAX__};
  }
  return is != 0;
}

/// Whether a step without a gradient only shrinks the weights, if it `is_at_rest`.
bool is_zero(const float* exp_avg_sq) {
  int is = 1;
  for (int64_t i = 0; i < kBlock; ++i) {
    is &= int{exp_avg_sq[i] == 0};
  }
  return is != 0;
}

void update_without_gradient(float* __restrict param,
                             float* __restrict exp_avg,
                             float* __restrict exp_avg_sq,
                             const AdamConstants* __restrict steps,
                             int64_t num_steps) {
  constexpr int64_t kStepsBetweenLooks = 32;
  int64_t step = 0;
  while (step < num_steps && !is_at_rest(exp_avg, exp_avg_sq, steps[step])) {
    for (const int64_t end = at_most(num_steps, step + kStepsBetweenLooks); step < end; ++step) {
      const AdamConstants c = steps[step];
      for (int64_t i = 0; i < kBlock; ++i) {
        adam_element(param[i], 0.0f, exp_avg[i], exp_avg_sq[i], nullptr, c);
      }
    }
  }
  if (step == num_steps) {
    return;
  }
  for (int64_t i = 0; i < kBlock; ++i) {  // as adam_element does to -0
    exp_avg[i] = 0;
    exp_avg_sq[i] += 0.0f;
  }
  const bool has_square = !is_zero(exp_avg_sq);
  for (; step < num_steps; ++step) {
    const AdamConstants c = steps[step];
    for (int64_t i = 0; i < kBlock; ++i) {
      param[i] *= c.shrink;
    }
    for (int64_t i = 0; has_square && i < kBlock; ++i) {
      exp_avg_sq[i] = flushed(exp_avg_sq[i] * c.beta2, c.least);
    }
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

void adam_without_gradient(
    float* param, float* exp_avg, float* exp_avg_sq, int64_t count, const AdamConstants* steps, int64_t num_steps) {
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    alignas(64) float block[3][kBlock] = {};
    float* const arrays[] = {param + begin, exp_avg + begin, exp_avg_sq + begin};
    const auto bytes = static_cast<size_t>(at_most(kBlock, count - begin)) * sizeof(float);
    for (int i = 0; i < 3; ++i) {
      __builtin_memcpy(block[i], arrays[i], bytes);
    }
    update_without_gradient(block[0], block[1], block[2], steps, num_steps);
    for (int i = 0; i < 3; ++i) {
      __builtin_memcpy(arrays[i], block[i], bytes);
    }
  }
}

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
