#pragma once

#include <limits>

namespace mezzo {

inline constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

}  // namespace mezzo
