#include "text/io/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace mezzo::text {

size_t find_invalid_utf8(std::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size()) {
    uint64_t word = 0;
    if (i + sizeof(word) <= bytes.size()) {
      std::memcpy(&word, bytes.data() + i, sizeof(word));
      if ((word & 0x8080808080808080u) == 0) {  // eight ASCII characters
        i += sizeof(word);
        continue;
      }
    }
    const int length = utf8_sequence_length(bytes.substr(i));
    if (length < 0) return i;
    i += length;
  }
  return i;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() + 16);
  while (!bytes.empty()) {
    const size_t valid = find_invalid_utf8(bytes);
    text.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    append_utf8(text, 0xFFFD);
    bytes.remove_prefix(-utf8_sequence_length(bytes));
  }
  return text;
}

std::string ascii_lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

std::string in_one_line(std::string text) {
  std::ranges::replace_if(text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, ' ');
  return text;
}

}  // namespace mezzo::text
