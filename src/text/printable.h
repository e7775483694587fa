#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mezzo::text {

/// The first character of `text`, which must not be empty; `text` moves past it.
/// A byte that is no part of UTF-8 counts as U+FFFD.
char32_t take_code_point(std::string_view& text);

/// Appends a character as UTF-8.
void append_utf8(std::string& out, char32_t code_point);

/// `text` with line feeds and tabs as spaces and without other control characters, so that it can neither break a
/// line nor steer a terminal; invalid UTF-8 becomes U+FFFD.
std::string printable(std::string_view text);

/// The columns of a terminal that `text` fills: two for East Asian wide characters, none for combining marks.
size_t display_width(std::string_view text);

/// The longest beginning of `text` that fills at most `columns`.
std::string_view truncate_to_width(std::string_view text, size_t columns);

}  // namespace mezzo::text
