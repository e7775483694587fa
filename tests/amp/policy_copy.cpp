// A shared object with a copy of mezzo of its own: see policy_thread_test.cpp, which loads it
// twice, and kernels/operator_test.cpp.

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include "kernels/dropout.h"
#include "mezzo/amp/autocast_guard.h"

/// Calls `inside` in a bfloat16 region of this copy, with a policy that runs mm in `mm_policy`, or
/// without one; returns the dtype of a product there.
extern "C" C10_EXPORT int8_t product_in_region(const char* mm_policy, void (*inside)()) {
  mezzo::AutocastOptions options;
  if (mm_policy != nullptr) {
    options.policy(mezzo::OpPolicy::preset("cpu").set("mm", mezzo::parse_cast_policy(mm_policy)));
  }
  const mezzo::AutocastGuard autocast(at::kCPU, at::kBFloat16, options);
  inside();
  return static_cast<int8_t>(at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type());
}

/// Dropout by this copy, in place.
extern "C" C10_EXPORT void drop(at::Tensor& x) { x = mezzo::kernels::dropout(x, {0.5, {1, 2, 3}}); }
