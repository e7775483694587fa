#pragma once

#include <c10/util/Exception.h>

#include <cmath>
#include <string_view>

namespace mezzo {

/// @param what  such as "Optimizer: lr"
/// @throws c10::ValueError  unless `value` is finite and at least 0
inline void check_not_negative(std::string_view what, double value) {
  TORCH_CHECK_VALUE(std::isfinite(value) && value >= 0, what, " must be finite and not negative, got ", value);
}

}  // namespace mezzo
