#pragma once

#include <string>
#include <string_view>

namespace mezzo::text {

/// `text` for use between tags and in quoted attributes, of HTML and of XML (SVG): markup is
/// escaped, characters that XML has no place for are left out, invalid UTF-8 becomes U+FFFD.
/// Line feeds and tabs stay.
std::string escape_html(std::string_view text);

}  // namespace mezzo::text
