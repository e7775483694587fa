#include "amp/policy_region.h"
#include "encoder/fused_blocks.h"
#include "mezzo/amp/finite_tracer.h"

namespace mezzo::kernels::fused {

bool can_run(const at::Tensor& x) {
  const auto dtype = x.scalar_type();
  const bool has_kernels = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  constexpr int64_t kMaxElements = int64_t{1} << 34;  // the masks' counters are good for so many
  return x.is_cpu() && has_kernels && x.numel() < kMaxElements && !PolicyRegion::has_policy(at::kCPU) &&
         !FiniteTracer::is_active();
}

}  // namespace mezzo::kernels::fused
