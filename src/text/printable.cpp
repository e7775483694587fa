#include "text/printable.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace mezzo::text {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

struct Lead {
  int continuation_bytes;
  char32_t bits;
  char32_t smallest;  // a character in more bytes than it needs is invalid
};

Lead read_lead(uint8_t byte) {
  if (byte < 0x80) {
    return {0, byte, 0};
  }
  if ((byte & 0xE0) == 0xC0) {
    return {1, byte & 0x1FU, 0x80};
  }
  if ((byte & 0xF0) == 0xE0) {
    return {2, byte & 0x0FU, 0x800};
  }
  if ((byte & 0xF8) == 0xF0) {
    return {3, byte & 0x07U, 0x10000};
  }
  return {-1, 0, 0};
}

bool is_scalar_value(char32_t code_point) {
  return code_point <= 0x10FFFF && !(code_point >= 0xD800 && code_point <= 0xDFFF);
}

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
  static constexpr std::array<Range, 4> kZero = {{{0x0300, 0x036F}, {0x200B, 0x200F}, {0xFE00, 0xFE0F},
                                                  {0x20D0, 0x20FF}}};
  if (is_control(code_point) || contains(kZero, code_point)) {
    return 0;
  }
  return contains(kWide, code_point) ? 2 : 1;
}

}  // namespace

char32_t take_code_point(std::string_view& text) {
  const Lead lead = read_lead(static_cast<uint8_t>(text.front()));
  text.remove_prefix(1);
  if (lead.continuation_bytes < 0 || text.size() < static_cast<size_t>(lead.continuation_bytes)) {
    return kReplacement;
  }
  char32_t code_point = lead.bits;
  for (int i = 0; i < lead.continuation_bytes; ++i) {
    const auto byte = static_cast<uint8_t>(text[static_cast<size_t>(i)]);
    if ((byte & 0xC0) != 0x80) {
      return kReplacement;
    }
    code_point = (code_point << 6) | (byte & 0x3FU);
  }
  if (code_point < lead.smallest || !is_scalar_value(code_point)) {
    return kReplacement;
  }
  text.remove_prefix(static_cast<size_t>(lead.continuation_bytes));
  return code_point;
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto continuation = [&](int shift) { return static_cast<char>(0x80 | ((code_point >> shift) & 0x3F)); };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xC0 | (code_point >> 6));
    out += continuation(0);
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xE0 | (code_point >> 12));
    out += {continuation(6), continuation(0)};
  } else {
    out += static_cast<char>(0xF0 | (code_point >> 18));
    out += {continuation(12), continuation(6), continuation(0)};
  }
}

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

}  // namespace mezzo::text
