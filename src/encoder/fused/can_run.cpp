#include "amp/policy_region.h"
#include "encoder/fused/block.h"
#include "kernels/dtypes.h"
#include "mezzo/amp/finite_tracer.h"

namespace mezzo::encoder {
namespace fused {
bool can_run(const at::Tensor& x) {
  constexpr int64_t kMaxElements = int64_t{1} << 34;  // the masks' counters cover this number
  return block_ops(x.device()) != nullptr && has_kernel(x.scalar_type()) && x.numel() < kMaxElements &&
         !PolicyRegion::has_policy(x.device().type()) && !FiniteTracer::is_active();
}

bool can_attend(const at::Tensor& x, const AttentionDescription& attention) {
  return can_run(x) && ops_of(x).takes_heads(x.device(), compute_dtype(x), x.size(1) / attention.num_heads,
                                             attention.relative.defined() || attention.soft_cap > 0);
}

}  // namespace fused

bool can_attend_unknown(const at::Device& device, at::ScalarType dtype, int64_t head_size, bool has_relative) {
  const BlockOps* ops = device.is_cpu() ? nullptr : block_ops(device);
  return ops != nullptr && ops->takes_heads(device, dtype, head_size, has_relative);
}

}  // namespace mezzo::encoder
