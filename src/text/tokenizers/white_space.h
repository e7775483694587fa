// White space as Unicode has it: also Rust's `trim` and the \s of regular expressions.
#pragma once

#include <string_view>

#include "text/io/utf8.h"
#include "text/tokenizers/unicode.h"

namespace mezzo::text {

inline bool is_white_space(char32_t c) { return (unicode::properties(c).flags & unicode::kWhiteSpace) != 0; }

/// A valid text without the white space at its end.
inline std::string_view trim_end(std::string_view text) {
  while (!text.empty()) {
    const char32_t c = last_code_point(text);
    if (!is_white_space(c)) break;
    text.remove_suffix(c < 0x80 ? 1 : c < 0x800 ? 2 : 3);
  }
  return text;
}

/// A valid text without the white space it starts with.
inline std::string_view trim_begin(std::string_view text) {
  while (!text.empty()) {
    const char* p = text.data();
    if (!is_white_space(decode_utf8(p))) break;
    text.remove_prefix(static_cast<size_t>(p - text.data()));
  }
  return text;
}

}  // namespace mezzo::text
