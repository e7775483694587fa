#include "text/io/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "text/io/utf8.h"

namespace mezzo::text {
namespace {

bool is_control(char32_t code_point) { return code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0); }

struct Range {
  char32_t first;
  char32_t last;
};

template <size_t N>
bool contains(const std::array<Range, N>& ranges, char32_t code_point) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [=](Range range) { return range.first <= code_point && code_point <= range.last; });
}

size_t width_of(char32_t code_point) {
  // The blocks that matter, after Unicode's EastAsianWidth.txt.
  static constexpr std::array<Range, 9> kWide = {{{0x1100, 0x115F},
                                                  {0x2E80, 0x303E},
                                                  {0x3041, 0xA4CF},
                                                  {0xAC00, 0xD7A3},
                                                  {0xF900, 0xFAFF},
                                                  {0xFE30, 0xFE6F},
                                                  {0xFF00, 0xFF60},
                                                  {0x1F300, 0x1FAFF},
                                                  {0x20000, 0x3FFFD}}};
  static constexpr std::array<Range, 4> kZero = {
      {{0x0300, 0x036F}, {0x200B, 0x200F}, {0xFE00, 0xFE0F}, {0x20D0, 0x20FF}}};
  if (is_control(code_point) || contains(kZero, code_point)) {
    return 0;
  }
  return contains(kWide, code_point) ? 2 : 1;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const char32_t code_point = take_code_point(text);
    if (code_point == '\n' || code_point == '\t') {
      out += ' ';
    } else if (!is_control(code_point)) {
      append_utf8(out, code_point);
    }
  }
  return out;
}

std::string fixed(double value, int digits) {
  return std::isnan(value) ? "NaN" : fmt::format("{:.{}f}", value, digits);
}

size_t display_width(std::string_view text) {
  size_t width = 0;
  while (!text.empty()) {
    width += width_of(take_code_point(text));
  }
  return width;
}

std::string_view truncate_to_width(std::string_view text, size_t columns) {
  std::string_view rest = text;
  for (size_t width = 0; !rest.empty();) {
    std::string_view after = rest;
    width += width_of(take_code_point(after));
    if (width > columns) {
      break;
    }
    rest = after;
  }
  return text.substr(0, text.size() - rest.size());
}

std::string quoted_name(std::string_view name) {
  constexpr size_t kColumns = 40;
  const std::string line = printable(name);
  const std::string_view begin = truncate_to_width(line, kColumns);
  return "'" + std::string(begin) + (begin.size() < line.size() ? "…'" : "'");
}

}  // namespace mezzo::text
