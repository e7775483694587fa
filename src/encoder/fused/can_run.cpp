#include "amp/policy_region.h"
#include "encoder/fused_blocks.h"
#include "kernels/dtypes.h"
#include "mezzo/amp/finite_tracer.h"

namespace mezzo::encoder::fused {

bool can_run(const at::Tensor& x) {
  constexpr int64_t kMaxElements = int64_t{1} << 34;  // the masks' counters are good for so many
  return x.is_cpu() && has_cpu_kernel(x.scalar_type()) && x.numel() < kMaxElements &&
         !PolicyRegion::has_policy(at::kCPU) && !FiniteTracer::is_active();
}

}  // namespace mezzo::encoder::fused
