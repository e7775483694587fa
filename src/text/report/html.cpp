#include "text/report/html.h"

#include "text/io/utf8.h"

namespace mezzo::text {
namespace {

bool xml_allows(char32_t c) {
  const bool is_control = (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7F && c < 0xA0);
  return !is_control && c != 0xFFFE && c != 0xFFFF;
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const char32_t c = take_code_point(text);
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default:
        if (xml_allows(c)) {
          append_utf8(out, c);
        }
    }
  }
  return out;
}

}  // namespace mezzo::text
