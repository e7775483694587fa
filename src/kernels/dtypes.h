#pragma once

#include <c10/core/ScalarType.h>

namespace mezzo {

/// float16 or bfloat16: optimizers keep moments and compute in float32 then.
inline bool is_half(c10::ScalarType dtype) { return dtype == c10::kHalf || dtype == c10::kBFloat16; }

/// Whether kernels read and write this dtype; other floating ones take the specification.
inline bool has_kernel(c10::ScalarType dtype) { return dtype == c10::kFloat || is_half(dtype); }

}  // namespace mezzo
