#include "text/tokenizers/words_of_text.h"

#include <algorithm>
#include <utility>

#include "text/io/utf8.h"
#include "text/tokenizers/bert_normalizer.h"
#include "text/tokenizers/graphemes.h"
#include "text/tokenizers/normalizer.h"
#include "text/tokenizers/pre_tokenizer.h"
#include "text/tokenizers/white_space.h"

namespace mezzo::text {
namespace {

using Normalize = std::function<std::string(std::string_view)>;

/// A normalized text that knows which part of the text each of its bytes is from. It is normalized one grapheme cluster
/// after the other. That is exact unless a normalizer looks at more, such as one that strips the ends of a text.
class AlignedText {
 public:
  AlignedText(std::string_view text, const Normalize& normalize) : size_(text.size()) {
    for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
      end = begin + grapheme_length(text.substr(begin));
      const std::string whole = normalize(text.substr(begin, end - begin));
      std::string of_characters;
      const size_t first = parts_.size();
      for (size_t i = begin; i < end; i = character_end(text, i)) {
        parts_.push_back({bytes_.size() + of_characters.size(), i});
        of_characters += normalize(text.substr(i, character_end(text, i) - i));
      }
      if (of_characters != whole) parts_.resize(first + 1);
      bytes_ += whole;
    }
  }

  std::string_view bytes() const { return bytes_; }

  /// Begin and end in the text. `part` is a part of bytes(), and not empty.
  std::pair<size_t, size_t> source(std::string_view part) const {
    const auto begin = static_cast<size_t>(part.data() - bytes_.data());
    const auto after = [&](size_t byte) { return std::ranges::upper_bound(parts_, byte, {}, &Part::normalized); };
    const auto end = after(begin + part.size() - 1);
    return {std::prev(after(begin))->text, end == parts_.end() ? size_ : end->text};
  }

 private:
  /// A character, or a cluster whose characters are not normalized one by one.
  struct Part {
    size_t normalized, text;  // its begin in each
  };

  size_t size_;
  std::string bytes_;
  std::vector<Part> parts_;
};

class WordsOfText : WordSink {
 public:
  WordsOfText(const AddedVocabulary& added, const Normalize& normalize) : added_(added), normalize_(normalize) {}

  std::vector<std::string> split(std::string_view text) {
    added_.raw().split(text, [&](TextSplit split) {
      if (split.id >= 0) {
        add(split.text);
      } else {
        split_normalized(split.text);
      }
    });
    return std::move(words_);
  }

 private:
  void split_normalized(std::string_view text) {
    if (added_.normalized().empty()) return add_words(text);
    const AlignedText aligned(text, normalize_);
    size_t done = 0;
    added_.normalized().split(aligned.bytes(), [&](TextSplit split) {
      if (split.id < 0) return;
      const auto [first, end] = aligned.source(split.text);
      const size_t begin = std::max(first, done);  // two may be of one cluster
      if (begin >= end) return;
      add_words(text.substr(done, begin - done));
      add(text.substr(begin, end - begin));
      done = end;
    });
    add_words(text.substr(done));
  }

  /// The words of BERT, with all their characters.
  void add_words(std::string_view text) {
    static const BertNormalizer kSplitter({.lowercase = false, .strip_accents = false, .clean_text = false});
    BertWords words(*this);
    kSplitter.run(text, words);
    words.end_word();
  }

  /// Without the characters at its ends that the tokenizer drops.
  void add(std::string_view word, size_t = 0) override {
    const auto is_read = [&](std::string_view character) {
      if (character.size() == 1 && character[0] > ' ' && character[0] < '\x7F') return true;
      return !trim_begin(character).empty() && !trim_begin(normalize_(character)).empty();
    };
    while (!word.empty()) {
      const size_t length = character_end(word, 0);
      if (is_read(word.substr(0, length))) break;
      word.remove_prefix(length);
    }
    while (!word.empty()) {
      size_t last = word.size() - 1;
      while ((static_cast<unsigned char>(word[last]) & 0xC0) == 0x80) --last;
      if (is_read(word.substr(last))) break;
      word.remove_suffix(word.size() - last);
    }
    if (!word.empty()) words_.emplace_back(word);
  }

  const AddedVocabulary& added_;
  const Normalize& normalize_;
  std::vector<std::string> words_;
};

}  // namespace

std::vector<std::string> words_of_text(std::string_view text,
                                       const AddedVocabulary& added,
                                       const Normalize& normalize) {
  const std::string repaired = find_invalid_utf8(text) == text.size() ? "" : replace_invalid_utf8(text);
  return WordsOfText(added, normalize).split(repaired.empty() ? text : repaired);
}

}  // namespace mezzo::text
