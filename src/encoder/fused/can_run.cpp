#include "amp/policy_region.h"
#include "encoder/fused/block.h"
#include "kernels/dtypes.h"
#include "mezzo/amp/finite_tracer.h"

namespace mezzo::encoder {
namespace fused {
bool can_run(const at::Tensor& x) {
  constexpr int64_t kMaxElements = int64_t{1} << 34;  // the masks' counters are good for so many
  return block_ops(x.device()) != nullptr && has_kernel(x.scalar_type()) && x.numel() < kMaxElements &&
         !PolicyRegion::has_policy(x.device().type()) && !FiniteTracer::is_active();
}

bool can_attend(const at::Tensor& x, int64_t num_heads) {
  return can_run(x) && x.size(1) / num_heads <= ops_of(x).largest_head;
}

}  // namespace fused

bool can_attend_unknown(const at::Device& device, int64_t head_size) {
  const BlockOps* ops = device.is_cpu() ? nullptr : block_ops(device);
  return ops != nullptr && head_size <= ops->largest_head;
}

}  // namespace mezzo::encoder
