#include "kernels/cpu/simd/element_kernels.h"
#include "kernels/cpu/simd/simd.h"

namespace mezzo::kernels::cpu::MEZZO_SIMD {
namespace {

constexpr int kLanes = 16;  // partial sums, so that they become vectors and do not wait for each other

}  // namespace

double sum_of_squares(const float* values, int64_t count) {
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      sums[lane] += value * value;
    }
  }
  double total = 0;
  for (; i < count; ++i) {
    total += double{values[i]} * double{values[i]};
  }
  for (const double sum : sums) {
    total += sum;
  }
  return total;
}

void add(const float* a, const float* b, float* sum, int64_t count) {
  for_each_vector(count, [&](int64_t i, auto get, auto put) { put(sum + i, get(a + i) + get(b + i)); });
}

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
