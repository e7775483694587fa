#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mezzo::text {

/// The length of the valid UTF-8 sequence at the start of `bytes` (not empty), or minus the length
/// of the maximal invalid part. (Unicode 15, section 3.9, "substitution of maximal subparts"; also
/// the WHATWG decoder and Python's.)
inline int utf8_sequence_length(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return -1;
  const int length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // The second byte excludes overlong forms, surrogates and what lies above U+10FFFF.
  const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == bytes.size()) return -i;
    if (i == 1 ? byte(1) < low || byte(1) > high : (byte(i) & 0xC0) != 0x80) return -i;
  }
  return length;
}

/// Offset of the first invalid sequence, or `bytes.size()`.
size_t find_invalid_utf8(std::string_view bytes);

/// The text with every maximal invalid part replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view bytes);

/// The text with A to Z in lower case.
std::string ascii_lower(std::string_view text);

/// The text with line breaks and other control characters of ASCII as spaces: names that files give, in a message.
std::string in_one_line(std::string text);

/// Decodes the code point at `p`, which must be valid UTF-8, and moves `p` behind it.
inline char32_t decode_utf8(const char*& p) {
  const auto byte = [&](int i) { return static_cast<char32_t>(static_cast<unsigned char>(p[i])); };
  const char32_t first = byte(0);
  if (first < 0x80) {
    p += 1;
    return first;
  }
  if (first < 0xE0) {
    const char32_t c = (first & 0x1F) << 6 | (byte(1) & 0x3F);
    p += 2;
    return c;
  }
  if (first < 0xF0) {
    const char32_t c = (first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    p += 3;
    return c;
  }
  const char32_t c = (first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  p += 4;
  return c;
}

/// The last code point of a valid text that is not empty.
inline char32_t last_code_point(std::string_view text) {
  const char* p = text.data() + text.size() - 1;
  while ((static_cast<unsigned char>(*p) & 0xC0) == 0x80) --p;
  return decode_utf8(p);
}

/// The first code point of `text`, which must not be empty and need not be valid; `text` moves past
/// it. A maximal invalid part counts as one U+FFFD.
inline char32_t take_code_point(std::string_view& text) {
  const int length = utf8_sequence_length(text);
  const char* p = text.data();
  text.remove_prefix(static_cast<size_t>(length < 0 ? -length : length));
  return length < 0 ? char32_t{0xFFFD} : decode_utf8(p);
}

inline void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    const char bytes[] = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
    out.append(bytes, 2);
  } else if (c < 0x10000) {
    const char bytes[] = {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
                          static_cast<char>(0x80 | (c & 0x3F))};
    out.append(bytes, 3);
  } else {
    const char bytes[] = {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 0x3F)),
                          static_cast<char>(0x80 | (c >> 6 & 0x3F)), static_cast<char>(0x80 | (c & 0x3F))};
    out.append(bytes, 4);
  }
}

}  // namespace mezzo::text
