#include <algorithm>

#include "amp/policy_region.h"
#include "encoder/fused/block.h"
#include "kernels/dtypes.h"
#include "mezzo/amp/finite_tracer.h"

namespace mezzo::encoder::fused {

bool can_run(const at::Tensor& x) {
  constexpr int64_t kMaxElements = int64_t{1} << 34;  // the masks' counters are good for so many
  const auto type = x.device().type();
  return block_ops(type) != nullptr && has_kernel(x.scalar_type()) && x.numel() < kMaxElements &&
         !PolicyRegion::has_policy(type) && !FiniteTracer::is_active();
}

bool leaves_to_flash(const at::Tensor& x, int64_t num_heads, const SequenceLayoutPtr& layout) {
  constexpr int64_t kShort = 128;  // tokens; by reasoning, not measured: a block of ours holds so many keys at once
  return std::ranges::any_of(layout->sequences(), [](const Sequence& each) { return each.num_tokens > kShort; }) &&
         runs_flash(x.device(), compute_dtype(x), x.size(1) / num_heads, layout);
}

}  // namespace mezzo::encoder::fused
