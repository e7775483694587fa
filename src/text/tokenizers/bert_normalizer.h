#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/io/utf8.h"
#include "text/tokenizers/unicode.h"

namespace mezzo::text {

/// How BERT cleans a text before WordPiece: the arguments of `transformers.BertTokenizer`, with its defaults.
struct BertNormalizerOptions {
  bool lowercase = true;  ///< each character by itself: a final sigma is not special
  std::optional<bool> strip_accents =
      std::nullopt;                  ///< decomposes (NFD), removes non-spacing marks; nullopt: as `lowercase`
  bool handle_chinese_chars = true;  ///< makes each Chinese character a word
  bool clean_text = true;            ///< removes control characters; all white space becomes spaces
};

/// BERT's normalizer and pre-tokenizer in one pass over the text.
///
/// The four steps are clean, space out Chinese, NFD without non-spacing marks, and lower-case. The constructor composes
/// them once into one action for each kind of code point. Only canonical reordering looks at more than one of them.
class BertNormalizer {
 public:
  explicit BertNormalizer(const BertNormalizerOptions& options);

  /// Sends the normalized text, which must be valid UTF-8, to `sink`:
  /// @code
  /// void append(char c);                   // a character inside a word
  /// void append(std::string_view bytes);   // likewise, one code point in UTF-8
  /// void append(char32_t c);               // likewise
  /// void space(char32_t c);                // a character between words
  /// void isolate(char32_t c);              // a character that is a word by itself
  /// bool full() const;                     // true to stop early; asked where words end
  /// @endcode
  template <class Sink>
  void run(std::string_view text, Sink& sink) const;

  /// The normalized text in one string.
  std::string normalize(std::string_view text) const;

 private:
  enum class Kind : uint8_t {
    kCopy,     // a letter, unchanged
    kDrop,     // removed without a trace
    kBreak,    // removed, but marks are not reordered across it
    kSpace,    // ends a word
    kIsolate,  // punctuation, unchanged
    kChinese,  // a letter, unchanged, between two spaces
    kMark,     // stays, to be sorted by its combining class
    kHangul,   // decomposed by arithmetic
    kReplace,  // becomes `length` elements
  };
  struct Action {
    Kind kind = Kind::kCopy;
    uint8_t combining_class = 0;
    uint16_t length = 0;
    char32_t value = 0;  // the code point of an element, the first element of kReplace
  };
  struct Mark {
    uint8_t combining_class;
    char32_t c;
  };

  Action compile(const unicode::Properties& properties, char32_t c);
  void compile_decomposed(char32_t c, std::vector<Action>& out) const;
  static Action compile_final(char32_t c);

  template <class Sink>
  static void apply(const Action& element, std::vector<Mark>& marks, Sink& sink);
  template <class Sink>
  void flush(std::vector<Mark>& marks, Sink& sink) const;

  bool clean_, chinese_, strip_, lower_;
  std::array<Action, 128> ascii_;
  std::vector<Action> actions_;   // by property index
  std::vector<Action> elements_;  // of all kReplace actions
};

template <class Sink>
void BertNormalizer::run(std::string_view text, Sink& sink) const {
  std::vector<Mark> marks;  // the marks since the last starter: nearly always none, so nothing is allocated
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p != end) {
    const char* const start = p;
    Action action;
    char32_t c;
    if (static_cast<unsigned char>(*p) < 0x80) {
      c = static_cast<unsigned char>(*p++);
      action = ascii_[c];
      if (action.kind == Kind::kCopy && marks.empty()) {
        sink.append(static_cast<char>(action.value));
        continue;
      }
    } else {
      c = decode_utf8(p);
      action = actions_[unicode::property_index(c)];
    }
    if (action.kind == Kind::kDrop) continue;
    if (!marks.empty() && action.kind != Kind::kMark && action.kind != Kind::kReplace) flush(marks, sink);
    switch (action.kind) {
      case Kind::kCopy:
        if (c < 0x80) {
          sink.append(static_cast<char>(action.value));
        } else {
          sink.append(std::string_view(start, p - start));
        }
        break;
      case Kind::kSpace:
        sink.space(clean_ ? U' ' : c);
        if (sink.full()) return;
        break;
      case Kind::kIsolate:
        sink.isolate(c);
        if (sink.full()) return;
        break;
      case Kind::kChinese:
        sink.space(U' ');
        sink.append(std::string_view(start, p - start));
        sink.space(U' ');
        if (sink.full()) return;
        break;
      case Kind::kMark: marks.push_back({action.combining_class, c}); break;
      case Kind::kHangul:
        for (char32_t jamo : unicode::decompose_hangul(c)) {
          if (jamo != 0) sink.append(jamo);
        }
        break;
      case Kind::kReplace:
        for (const Action& element : std::span(elements_).subspan(action.value, action.length)) {
          if (!marks.empty() && element.kind != Kind::kMark) flush(marks, sink);
          apply(element, marks, sink);
        }
        break;
      case Kind::kBreak:
      case Kind::kDrop: break;
    }
  }
  if (!marks.empty()) flush(marks, sink);
}

template <class Sink>
void BertNormalizer::apply(const Action& element, std::vector<Mark>& marks, Sink& sink) {
  switch (element.kind) {
    case Kind::kSpace: sink.space(element.value); break;
    case Kind::kIsolate: sink.isolate(element.value); break;
    case Kind::kMark: marks.push_back({element.combining_class, element.value}); break;
    case Kind::kBreak: break;
    default: sink.append(element.value);
  }
}

/// Canonical reordering of the marks that stay. Removed characters do not matter to it: the sort is stable.
template <class Sink>
void BertNormalizer::flush(std::vector<Mark>& marks, Sink& sink) const {
  std::stable_sort(marks.begin(), marks.end(),
                   [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; });
  std::vector<Mark> none;
  for (const Mark& mark : std::exchange(marks, {})) {
    const unicode::Properties& of = unicode::properties(mark.c);
    if (lower_ && of.lower_length > 0) {
      for (char32_t c : unicode::sequence(of.lower_offset, of.lower_length)) apply(compile_final(c), none, sink);
    } else {
      apply(compile_final(mark.c), none, sink);
    }
  }
}

}  // namespace mezzo::text
