#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mezzo::text {

/// `text` with line feeds and tabs as spaces and without other control characters. So it can neither break a line nor
/// control a terminal. Invalid UTF-8 becomes U+FFFD.
std::string printable(std::string_view text);

/// `name` in quotes and in one line; the end of a long name is cut off.
std::string quoted_name(std::string_view name);

/// `value` with `digits` decimals; NaN as "NaN", whatever its sign.
std::string fixed(double value, int digits);

/// The columns of a terminal that `text` fills: two for East Asian wide characters,
/// none for combining marks.
size_t display_width(std::string_view text);

/// The longest beginning of `text` that fills at most `columns`.
std::string_view truncate_to_width(std::string_view text, size_t columns);

}  // namespace mezzo::text
