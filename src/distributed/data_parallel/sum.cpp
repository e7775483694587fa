#include "distributed/data_parallel/sum.h"

#include <algorithm>

#include "kernels/cpu/simd/element_kernels.h"

namespace mezzo::distributed {
namespace {

constexpr int64_t kBlock = 1024;  // floats that stay in the first-level cache while parts are added

}  // namespace

void sum_of(const std::vector<const float*>& parts, int64_t count, float* out) {
  if (parts.size() == 1) {
    std::copy_n(parts[0], count, out);
    return;
  }
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    const float* sum = parts[0] + begin;
    for (size_t part = 1; part < parts.size(); ++part) {
      kernels::cpu::element_kernels().add(sum, parts[part] + begin, out + begin, length);
      sum = out + begin;
    }
  }
}

}  // namespace mezzo::distributed
