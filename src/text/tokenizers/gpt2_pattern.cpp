#include "text/tokenizers/gpt2_pattern.h"

#include <array>
#include <cstdint>

#include "text/io/utf8.h"
#include "text/tokenizers/unicode.h"

namespace mezzo::text {
namespace {

enum class CharClass : uint8_t { kLetter, kNumber, kSpace, kOther };

CharClass table_class(char32_t c) {
  const uint16_t flags = unicode::properties(c).flags;
  return flags & unicode::kLetter       ? CharClass::kLetter
         : flags & unicode::kNumber     ? CharClass::kNumber
         : flags & unicode::kWhiteSpace ? CharClass::kSpace
                                        : CharClass::kOther;
}

const std::array<CharClass, 128>& ascii_classes() {
  static const std::array<CharClass, 128> kClasses = [] {
    std::array<CharClass, 128> classes{};
    for (char32_t c = 0; c < classes.size(); ++c) classes[c] = table_class(c);
    return classes;
  }();
  return kClasses;
}

/// The class of the character at `p`, which moves behind it.
CharClass take_class(const std::array<CharClass, 128>& ascii, const char*& p) {
  const auto byte = static_cast<unsigned char>(*p);
  if (byte < 0x80) {
    ++p;
    return ascii[byte];
  }
  return table_class(decode_utf8(p));
}

/// The length of one of 's 't 'm 'd 're 've 'll, or 0.
size_t contraction_length(std::string_view text) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  const char first = text[1];
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  const char second = text.size() > 2 ? text[2] : '\0';
  const bool longer =
      (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
  return longer ? 3 : 0;
}

}  // namespace

size_t gpt2_word_length(std::string_view text) {
  if (const size_t contraction = contraction_length(text)) return contraction;
  const auto& ascii = ascii_classes();
  const char* p = text.data();
  const char* const end = p + text.size();
  const auto length = [&](const char* at) { return static_cast<size_t>(at - text.data()); };
  CharClass run = take_class(ascii, p);
  if (text[0] == ' ' && p != end) {  // " ?" before a word
    const char* next = p;
    const CharClass second = take_class(ascii, next);
    if (second != CharClass::kSpace) {
      run = second;
      p = next;
    }
  }
  if (run != CharClass::kSpace) {
    for (const char* next = p; p != end && take_class(ascii, next) == run;) p = next;
    return length(p);
  }
  // White space: all of it at the end of the text, else all but the last, which the next word may
  // take; a single one is a word.
  const char* last = text.data();
  for (const char* next = p; p != end; p = next) {
    if (take_class(ascii, next) != CharClass::kSpace) return length(last == text.data() ? p : last);
    last = p;
  }
  return length(p);
}

}  // namespace mezzo::text
