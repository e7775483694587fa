#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "mezzo/text/data/dataset.h"

namespace mezzo::text {

inline const RawLabel kNone = std::monostate();
inline RawLabel name(std::string text) { return RawLabel(std::move(text)); }
inline RawLabel id(int64_t value) { return RawLabel(std::to_string(value)); }

}  // namespace mezzo::text
