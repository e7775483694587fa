#include "text/utf8_validation.h"

#include <cstdint>

namespace mezzo::text {
namespace {

struct Sequence {
  size_t length;  // of the character, or of the ill-formed part to replace by one U+FFFD
  bool valid;
};

/// The sequence at the start of `bytes`, by table 3-7 of the Unicode standard: the lead byte fixes the length and the
/// range of the second byte.
Sequence first_sequence(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint8_t low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size() || byte(i) < low || byte(i) > high) return {i, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true};
}

}  // namespace

size_t find_invalid_utf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const auto [length, valid] = first_sequence(bytes.substr(i));
    if (!valid) return i;
    i += length;
  }
  return std::string_view::npos;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string result;
  result.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const auto [length, valid] = first_sequence(bytes.substr(i));
    result += valid ? bytes.substr(i, length) : "\xEF\xBF\xBD";
    i += length;
  }
  return result;
}

}  // namespace mezzo::text
