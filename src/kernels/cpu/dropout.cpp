#include "kernels/dropout.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/philox_lanes.h"
#include "kernels/cpu/vector_clones.h"

namespace mezzo::kernels::cpu {
namespace {

constexpr int kLanes = kPhiloxLanes;
constexpr int kChunk = 4 * kLanes;        // elements they decide
constexpr int64_t kGrain = 256 * kChunk;  // elements a task takes at least

/// keep[4 * lane + word] for the blocks first_block ... first_block + kLanes - 1.
MEZZO_VECTOR_CLONES void keep_chunk(uint64_t first_block, const RandomKey& key, uint32_t threshold, uint8_t* keep) {
  uint32_t words[4][kLanes];
  philox_lanes(first_block, key, words);
  for (int lane = 0; lane < kLanes; ++lane) {
    keep[4 * lane] = words[0][lane] >= threshold;
    keep[4 * lane + 1] = words[1][lane] >= threshold;
    keep[4 * lane + 2] = words[2][lane] >= threshold;
    keep[4 * lane + 3] = words[3][lane] >= threshold;
  }
}

template <class T>
void apply_range(
    const T* x, T* out, int64_t begin, int64_t end, float scale, uint32_t threshold, const RandomKey& key) {
  uint8_t keep[kChunk];
  for (int64_t at = begin; at < end; at += kChunk) {
    keep_chunk(static_cast<uint64_t>(at) / 4, key, threshold, keep);
    const int64_t count = std::min<int64_t>(kChunk, end - at);
    for (int64_t i = 0; i < count; ++i) {
      out[at + i] = keep[i] ? static_cast<T>(static_cast<float>(x[at + i]) * scale) : T(0);
    }
  }
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, double p, const RandomKey& key) {
  auto out = at::empty_like(x, at::MemoryFormat::Contiguous);
  const auto scale = static_cast<float>(1 / (1 - p));
  const auto threshold = static_cast<uint32_t>(std::ldexp(p, 32));
  const int64_t chunks = (x.numel() + kChunk - 1) / kChunk;
  const auto apply = [&]<class T>(const T* in, T* result) {
    at::parallel_for(0, chunks, kGrain / kChunk, [&](int64_t begin, int64_t end) {
      apply_range(in, result, begin * kChunk, std::min(end * kChunk, x.numel()), scale, threshold, key);
    });
  };
  switch (x.scalar_type()) {
    case at::kFloat: apply(x.const_data_ptr<float>(), out.mutable_data_ptr<float>()); break;
    case at::kBFloat16: apply(x.const_data_ptr<at::BFloat16>(), out.mutable_data_ptr<at::BFloat16>()); break;
    case at::kHalf: apply(x.const_data_ptr<at::Half>(), out.mutable_data_ptr<at::Half>()); break;
    default: TORCH_INTERNAL_ASSERT(false, "cpu::dropout has no kernel for ", x.scalar_type());
  }
  return out;
}

}  // namespace mezzo::kernels::cpu
