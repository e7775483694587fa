#pragma once

#include <c10/core/DeviceType.h>

#include <span>
#include <string_view>

namespace mezzo {

/// LibTorch's error for a number that does not fit in float16, "value cannot be converted to type c10::Half without
/// overflow", does not name the op. From the first call for a device type on, the ops below name themselves in it, in
/// autocast regions for that type. Each gets an autocast kernel that casts nothing. An op that has an autocast kernel
/// already is left alone. Thread-safe.
void name_ops_in_overflow_errors(c10::DeviceType device_type);

/// Those ops: they write a number of the caller's into a tensor, or compare with one.
std::span<const std::string_view> ops_named_in_overflow_errors();

}  // namespace mezzo
