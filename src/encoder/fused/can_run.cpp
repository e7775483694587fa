#include "amp/policy_region.h"
#include "encoder/fused/block.h"
#include "encoder/pre_norm_blocks.h"
#include "kernels/dtypes.h"
#include "mezzo/amp/finite_tracer.h"

namespace mezzo::encoder {
namespace fused {
namespace {

constexpr int64_t kShort = 128;  // tokens; by reasoning, not measured: a block of ours holds so many keys at once

}  // namespace

bool can_run(const at::Tensor& x) {
  constexpr int64_t kMaxElements = int64_t{1} << 34;  // the masks' counters are good for so many
  const auto type = x.device().type();
  return block_ops(type) != nullptr && has_kernel(x.scalar_type()) && x.numel() < kMaxElements &&
         !PolicyRegion::has_policy(type) && !FiniteTracer::is_active();
}

bool can_run_pre_norm(const at::Tensor& x) { return can_run(x) && ops_of(x).pre_norm != nullptr; }

bool can_attend(const at::Tensor& x, int64_t num_heads, const SequenceLayoutPtr& layout, bool is_relative) {
  const int64_t head_size = x.size(1) / num_heads;
  return can_run(x) && head_size <= ops_of(x).largest_head &&
         !(!is_relative && layout->longest() > kShort && runs_flash(x.device(), compute_dtype(x), head_size, layout));
}

}  // namespace fused

bool can_attend_unknown(
    const at::Device& device, at::ScalarType dtype, int64_t head_size, int64_t longest, bool is_relative) {
  const BlockOps* ops = device.is_cpu() ? nullptr : block_ops(device.type());
  return ops != nullptr && head_size <= ops->largest_head &&
         !(!is_relative && longest > fused::kShort && has_flash(device, dtype, head_size));
}

}  // namespace mezzo::encoder
