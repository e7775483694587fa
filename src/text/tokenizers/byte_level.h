#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/io/utf8.h"

namespace mezzo::text {

/// The character that GPT-2 writes for each byte: itself if it is printable, else one from U+0100 on.
inline const std::array<char32_t, 256>& byte_characters() {
  static const std::array<char32_t, 256> kCharacters = [] {
    std::array<char32_t, 256> characters{};
    char32_t next = 0x100;
    for (char32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      characters[b] = printable ? b : next++;
    }
    return characters;
  }();
  return kCharacters;
}

/// Writes every byte as its character.
inline void append_byte_characters(std::string_view bytes, std::string& out) {
  for (const char c : bytes) append_utf8(out, byte_characters()[static_cast<unsigned char>(c)]);
}

/// tokenizers' name of a byte that has no token: <0x0A>.
inline std::string byte_token(unsigned byte) {
  constexpr char kHex[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
}

/// The bytes that a text of such characters stands for; nullopt if it holds others.
inline std::optional<std::string> bytes_of_characters(std::string_view text) {
  static const std::array<int, 0x144> kBytes = [] {
    std::array<int, 0x144> bytes;
    bytes.fill(-1);
    for (int b = 0; b < 256; ++b) bytes[byte_characters()[static_cast<size_t>(b)]] = b;
    return bytes;
  }();
  std::string bytes;
  for (const char *p = text.data(), *end = p + text.size(); p != end;) {
    const char32_t c = decode_utf8(p);
    if (c >= kBytes.size() || kBytes[c] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kBytes[c]));
  }
  return bytes;
}

}  // namespace mezzo::text
