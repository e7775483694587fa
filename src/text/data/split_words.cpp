#include "mezzo/text/data/split_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <utility>

#include "text/io/utf8.h"
#include "text/tokenizers/bert_normalizer.h"

namespace mezzo::text {
namespace {

class WordList {
 public:
  explicit WordList(std::vector<std::string>& words) : words_(words) {}

  void append(char c) { word_.push_back(c); }
  void append(std::string_view bytes) { word_.append(bytes); }
  void append(char32_t c) { append_utf8(word_, c); }
  void space(char32_t) { end_word(); }
  void isolate(char32_t c) {
    end_word();
    append(c);
    end_word();
  }
  bool full() const { return false; }

  void end_word() {
    if (!word_.empty()) words_.push_back(std::move(word_));
    word_.clear();
  }

 private:
  std::vector<std::string>& words_;
  std::string word_;
};

}  // namespace

SplitText split_words(std::string text) {
  static const BertNormalizer kSplitter(
      BertTokenizerOptions().do_lower_case(false).strip_accents(false).tokenize_chinese_chars(true).clean_text(false));
  SplitText split;
  split.text = find_invalid_utf8(text) == text.size() ? std::move(text) : replace_invalid_utf8(text);
  WordList list(split.words);
  kSplitter.run(split.text, list);
  list.end_word();
  return split;
}

std::string join_words(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, " ")); }

}  // namespace mezzo::text
