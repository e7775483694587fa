#pragma once

#include <string>
#include <string_view>

namespace mezzo::text {

/// `text` for use between tags and in quoted attributes, of HTML and of XML (SVG): markup is
/// escaped, characters that XML has no place for are left out, invalid UTF-8 becomes U+FFFD.
/// Line feeds and tabs stay.
std::string escape_html(std::string_view text);

/// The opening tag of what may be wider than the page, which then moves by itself, with the keyboard too.
/// @param name  what it holds, plain text, for who does not see it
/// @param classes  in whose style it is
std::string scroll_region(std::string_view name, std::string_view classes = "card scroll");

/// A whole page in the report's style, which runs no script and loads nothing, whatever its texts are.
/// @param title  of the window, plain text
/// @param body  HTML
std::string render_page(std::string_view title, std::string_view body);

}  // namespace mezzo::text
