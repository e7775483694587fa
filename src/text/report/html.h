#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mezzo::text {

/// Escapes `text` for use between tags and in quoted attributes, of HTML and of XML (SVG). Characters that XML forbids
/// are left out, and invalid UTF-8 becomes U+FFFD. Line feeds and tabs stay.
std::string escape_html(std::string_view text);
/// Also keeps each flag, such as --learning-rate, on one line.
std::string escape_with_flags(std::string_view text);

/// The opening tag of a region that scrolls by itself, also with the keyboard, if it is wider than the page.
/// @param name  the contents, plain text, for screen readers
/// @param classes  in whose style it is
std::string scroll_region(std::string_view name, std::string_view classes = "card scroll");

/// A section with its heading, to which contents() links; empty if `body` is.
/// @param title  HTML
std::string section(std::string_view title, const std::string& body);

/// Links to the sections of a page.
std::string contents(std::string_view body);

/// The beginning of a table, up to its first row.
/// @param heads  of the columns, plain text
std::string table_head(const std::vector<std::string>& heads, std::string_view classes = "pairs");

/// A cell with a bar of this share of its width behind `text`.
std::string bar_cell(double share, const std::string& text);

/// A share as people read it: "58.3 %"; "–" if it is not a number from 0 to 1.
std::string format_share(double share);

/// A whole page in the report's style, which runs no script and loads nothing, whatever its texts are.
/// @param title  of the window, plain text
/// @param body  HTML
std::string render_page(std::string_view title, std::string_view body);

}  // namespace mezzo::text
