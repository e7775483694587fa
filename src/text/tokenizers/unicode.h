// What tokenizers does to single code points. The tables are probed from it by
// tools/generate_unicode_tables.py.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace mezzo::text::unicode {

enum Flag : uint16_t {
  kCleanDrop = 1 << 0,        // removed by clean_text
  kCleanSpace = 1 << 1,       // made a space by clean_text
  kChinese = 1 << 2,          // surrounded by spaces by tokenize_chinese_chars
  kNonspacingMark = 1 << 3,   // removed by strip_accents, after NFD
  kWhiteSpace = 1 << 4,       // separates words
  kPunctuation = 1 << 5,      // a word by itself
  kWord = 1 << 6,             // \w, which an added token with `single_word` may not touch
  kHangul = 1 << 7,           // a syllable, decomposed by arithmetic
  kLetter = 1 << 8,           // \p{L}
  kNumber = 1 << 9,           // \p{N}
  kDigit = 1 << 10,           // a digit for the pre-tokenizer Digits: a newer Unicode's numbers
  kCombiningMark = 1 << 11,   // removed by StripAccents
  kWhitespaceWord = 1 << 12,  // \w of the pre-tokenizer Whitespace
};

/// What decides where grapheme clusters end.
enum class Grapheme : uint8_t {
  kOther,
  kControl,
  kAttached,        // belongs to the previous character
  kExtend,          // as kAttached, also between a pictograph and a joiner
  kConjunctExtend,  // as kAttached, also between the consonants of a conjunct
  kConjunctLinker,  // joins the consonants of a conjunct
  kZeroWidthJoiner,
  kPrepend,  // belongs to the next character
  kHangulL,
  kHangulV,
  kHangulT,
  kHangulSyllable,
  kRegionalIndicator,
  kPictograph,
  kConsonant,
};

struct Properties {
  uint16_t flags;
  uint8_t combining_class;
  Grapheme grapheme;
  uint16_t nfd_offset;
  uint8_t nfd_length;  // 0: the code point itself
  uint16_t nfkd_offset;
  uint8_t nfkd_length;  // 0: as NFD
  uint16_t lower_offset;
  uint8_t lower_length;
};

/// Number of different `Properties`, and those with one index.
int num_properties();
const Properties& properties_at(int index);

/// Index of the properties of a code point (at most U+10FFFF). Hangul syllables share one.
int property_index(char32_t c);

inline const Properties& properties(char32_t c) { return properties_at(property_index(c)); }

/// The first code point whose properties have this index.
char32_t first_with(int index);

/// A replacement that `Properties` points to.
std::span<const char32_t> sequence(uint16_t offset, uint8_t length);

/// What NFC makes of two code points that follow each other, or 0. Hangul syllables are not among them.
char32_t compose(char32_t first, char32_t second);

/// Whether NFC makes one code point of this and one before it. Without Hangul.
bool composes_with_previous(char32_t c);

/// The two or three jamo of a Hangul syllable; the third is 0 if there are two.
inline std::array<char32_t, 3> decompose_hangul(char32_t c) {
  const char32_t s = c - 0xAC00;
  return {0x1100 + s / 588, 0x1161 + s % 588 / 28, s % 28 == 0 ? 0 : 0x11A7 + s % 28};
}

}  // namespace mezzo::text::unicode
