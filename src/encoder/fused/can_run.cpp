#include "amp/policy_region.h"
#include "encoder/fused/block.h"
#include "encoder/pre_norm_blocks.h"
#include "kernels/dtypes.h"
#include "mezzo/amp/finite_tracer.h"

namespace mezzo::encoder {
namespace fused {
bool can_run(const at::Tensor& x) {
  constexpr int64_t kMaxElements = int64_t{1} << 34;  // the masks' counters are good for so many
  return block_ops(x.device()) != nullptr && has_kernel(x.scalar_type()) && x.numel() < kMaxElements &&
         !PolicyRegion::has_policy(x.device().type()) && !FiniteTracer::is_active();
}

bool can_run_pre_norm(const at::Tensor& x) { return can_run(x) && ops_of(x).pre_norm != nullptr; }

bool can_attend(const at::Tensor& x, int64_t num_heads) {
  return can_run(x) && x.size(1) / num_heads <= ops_of(x).largest_head;
}

}  // namespace fused

bool can_attend_unknown(
    const at::Device& device, at::ScalarType dtype, int64_t head_size, int64_t longest, bool is_relative) {
  const BlockOps* ops = device.is_cpu() ? nullptr : block_ops(device);
  return ops != nullptr && head_size <= ops->largest_head &&
         (is_relative || !prefers_flash(device, dtype, head_size, longest));
}

}  // namespace mezzo::encoder
