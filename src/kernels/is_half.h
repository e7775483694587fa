#pragma once

#include <c10/core/ScalarType.h>

namespace mezzo {

/// Whether a parameter of this dtype needs its moments and arithmetic in float32.
inline bool is_half(c10::ScalarType dtype) { return dtype == c10::kHalf || dtype == c10::kBFloat16; }

/// Whether CPU kernels read and write this dtype.
inline bool has_cpu_kernel(c10::ScalarType dtype) { return dtype == c10::kFloat || is_half(dtype); }

}  // namespace mezzo
