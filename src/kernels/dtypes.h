#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <string>

#include "kernels/element.h"

namespace mezzo {

/// float16 or bfloat16: optimizers keep moments and compute in float32 then.
inline bool is_half(c10::ScalarType dtype) { return dtype == c10::kHalf || dtype == c10::kBFloat16; }

/// Whether kernels read and write this dtype; other floating ones take the specification.
inline bool has_kernel(c10::ScalarType dtype) { return dtype == c10::kFloat || is_half(dtype); }

/// As Python names it, "bfloat16".
inline std::string dtype_name(c10::ScalarType dtype) {
  const bool is_named = dtype < c10::ScalarType::Undefined;
  return std::string(is_named ? c10::getDtypeNames(dtype).first : c10::toString(dtype));
}

/// Such a dtype, as they are told of it.
inline kernels::Element element_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kFloat: return kernels::Element::kFloat;
    case c10::kBFloat16: return kernels::Element::kBFloat16;
    case c10::kHalf: return kernels::Element::kHalf;
    default: TORCH_INTERNAL_ASSERT(false, "no kernel for ", dtype);
  }
}

}  // namespace mezzo
