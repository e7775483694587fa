#pragma once

#include <c10/core/ScalarType.h>

#include <string_view>

namespace mezzo {

/// As Python spells it: "float16" for kHalf.
inline std::string_view dtype_name(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kHalf: return "float16";
    case c10::kBFloat16: return "bfloat16";
    case c10::kFloat: return "float32";
    case c10::kDouble: return "float64";
    default: return c10::toString(dtype);
  }
}

}  // namespace mezzo
