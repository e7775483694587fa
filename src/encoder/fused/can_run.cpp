#include "amp/policy_region.h"
#include "encoder/block_ops.h"
#include "encoder/fused_blocks.h"
#include "kernels/is_half.h"
#include "mezzo/amp/finite_tracer.h"

namespace mezzo::kernels::fused {

bool can_run(const at::Tensor& x) {
  constexpr int64_t kMaxElements = int64_t{1} << 34;  // the masks' counters are good for so many
  const auto type = x.device().type();
  return block_ops(type) != nullptr && has_kernel(x.scalar_type()) && x.numel() < kMaxElements &&
         !PolicyRegion::has_policy(type) && !FiniteTracer::is_active();
}

}  // namespace mezzo::kernels::fused
