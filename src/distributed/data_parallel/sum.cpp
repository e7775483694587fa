#include "distributed/data_parallel/sum.h"

#include <algorithm>

#include "kernels/cpu/vector_clones.h"

namespace mezzo::distributed {
namespace {

constexpr int64_t kBlock = 1024;  // floats that stay in the first-level cache while parts are added

MEZZO_VECTOR_CLONES void add_pair(const float* a, const float* b, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = a[i] + b[i];
  }
}

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
      add_pair(sum, parts[part] + begin, length, out + begin);
      sum = out + begin;
    }
  }
}

}  // namespace mezzo::distributed
