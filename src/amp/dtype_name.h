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
    case c10::kFloat8_e4m3fn: return "float8_e4m3fn";
    case c10::kFloat8_e4m3fnuz: return "float8_e4m3fnuz";
    case c10::kFloat8_e5m2: return "float8_e5m2";
    case c10::kFloat8_e5m2fnuz: return "float8_e5m2fnuz";
    case c10::kFloat8_e8m0fnu: return "float8_e8m0fnu";
    default: return c10::toString(dtype);
  }
}

}  // namespace mezzo
