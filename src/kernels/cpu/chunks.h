#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace mezzo::kernels::cpu {

/// A run of elements of one of many tensors.
struct Chunk {
  size_t tensor;
  int64_t begin, count;
};

/// Elements of a chunk, but for the last one of a tensor.
constexpr int64_t kChunk = int64_t{1} << 16;

/// Cuts tensors of `sizes` elements into chunks that do not depend on the number of threads, so
/// that neither do sums over them.
inline std::vector<Chunk> cut_into_chunks(const std::vector<int64_t>& sizes) {
  std::vector<Chunk> chunks;
  for (size_t tensor = 0; tensor < sizes.size(); ++tensor) {
    for (int64_t begin = 0; begin < sizes[tensor]; begin += kChunk) {
      chunks.push_back({tensor, begin, std::min(kChunk, sizes[tensor] - begin)});
    }
  }
  return chunks;
}

}  // namespace mezzo::kernels::cpu
