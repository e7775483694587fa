#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "encoder/cpu/block_ops.h"
#include "kernels/cpu/tensor_spans.h"

namespace mezzo::encoder::cpu {

at::Tensor dropout(const at::Tensor& x, const DropoutSite& site) {
  constexpr int64_t kChunk = 128, kGrain = 128;  // elements; chunks that a task takes at least
  auto out = at::empty_like(x, at::MemoryFormat::Contiguous);
  const auto from = kernels::cpu::read_span(x);
  const auto to = kernels::cpu::write_span(out);
  const auto mask = dropout_of(site);
  const int64_t count = x.numel();
  at::parallel_for(0, (count + kChunk - 1) / kChunk, kGrain, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kChunk;
    simd_kernels().dropout(from, to, first, std::min(end * kChunk, count) - first, mask);
  });
  return out;
}

}  // namespace mezzo::encoder::cpu
