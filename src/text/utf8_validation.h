#pragma once

#include <string>
#include <string_view>

namespace mezzo::text {

/// The offset of the first byte of `bytes` that is not well-formed UTF-8 (overlong forms, surrogates and code points
/// above U+10FFFF are not), or npos.
size_t find_invalid_utf8(std::string_view bytes);

/// `bytes` with each maximal ill-formed part replaced by U+FFFD: what Python's `bytes.decode("utf-8", "replace")`
/// gives.
std::string replace_invalid_utf8(std::string_view bytes);

}  // namespace mezzo::text
