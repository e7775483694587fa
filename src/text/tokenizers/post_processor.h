#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mezzo/text/tokenizers/tokenizer.h"
#include "text/tokenizers/json_field.h"

namespace mezzo::text {

enum class TruncationSide { kRight, kLeft };

/// Ids that may be left for texts when `num_special` tokens are added: SIZE_MAX for no limit.
/// @throws c10::ValueError  for a max_length that is negative, or too small for them.
size_t text_budget(int64_t max_length, size_t num_special);

/// Leaves at most `budget` ids. True where some were lost.
bool truncate(std::vector<int32_t>& ids, size_t budget, TruncationSide side);

/// The same for a pair, the longer text first, as transformers' "longest_first" does. The shorter text stays whole
/// while it fits into half. The odd token goes to the longer, the second of equals.
bool truncate(std::vector<int32_t>& first, std::vector<int32_t>& second, size_t budget, TruncationSide side);

/// The windows of `ids`, of at most `budget` each, which overlap by `stride`; one at least.
/// @param side  on which side the last window may be shorter.
/// @throws c10::ValueError  unless `stride` is below `budget`.
std::vector<std::vector<int32_t>> windows_of(const std::vector<int32_t>& ids,
                                             size_t budget,
                                             int64_t stride,
                                             TruncationSide side);

/// The ids of words, and of each id the word that it is of.
struct IdsOfWords {
  std::vector<int32_t> ids, word_ids;

  /// @param append_ids  (word, ids) appends the ids of a word.
  /// @param budget  the ids needed; if the end is cut off, no further words are read.
  template <class AppendIds>
  IdsOfWords(std::span<const std::string> words, size_t budget, TruncationSide side, AppendIds&& append_ids) {
    for (size_t i = 0; i < words.size() && (side == TruncationSide::kLeft || ids.size() <= budget); ++i) {
      append_ids(words[i], ids);
      word_ids.resize(ids.size(), static_cast<int32_t>(i));
    }
    truncated = truncate(ids, budget, side);
    truncate(word_ids, budget, side);
  }
  bool truncated = false;
};

/// Puts special tokens around the ids of one text or two: the section "post_processor" of tokenizer.json.
class PostProcessor {
 public:
  /// Adds nothing; a pair is one text after the other, with types 0 and 1.
  PostProcessor();

  /// @throws c10::ValueError  naming file and key of an unknown value, and of ids from `vocab_size` on.
  PostProcessor(const JsonField& field, int64_t vocab_size);

  /// Makes all token types 0.
  void clear_types();

  /// Of one text.
  Encoding process(const IdsOfWords& words) const;
  size_t num_special(bool is_pair) const { return is_pair ? pair_special_ : single_special_; }
  Encoding process(const std::vector<int32_t>& text) const { return fill(single_, {&text, nullptr}); }
  Encoding process(const std::vector<int32_t>& text, const std::vector<int32_t>& pair) const {
    return fill(pair_, {&text, &pair});
  }

 private:
  struct Piece {
    int sequence;              // 0 or 1: of the text or its pair; -1: `ids`
    std::vector<int32_t> ids;  // special tokens
    int32_t type;
  };
  using Template = std::vector<Piece>;
  struct Texts {
    const std::vector<int32_t>*first, *second;
  };
  void read(const JsonField& field);
  void read_fixed(const JsonField& field, bool is_roberta);
  int32_t token_id(const JsonField& field) const;
  Template read_template(const JsonField& pieces, const JsonField& special_tokens, bool is_pair) const;
  static Encoding fill(const Template& pieces, const Texts& texts);

  int64_t vocab_size_ = 0;
  Template single_, pair_;
  size_t single_special_ = 0, pair_special_ = 0;
};

}  // namespace mezzo::text
