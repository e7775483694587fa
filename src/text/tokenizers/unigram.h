#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizers/double_array_trie.h"
#include "text/tokenizers/json_field.h"
#include "text/tokenizers/token_model.h"

namespace mezzo::text {

/// Splits a word into the tokens whose scores, logarithms of probabilities, have the largest sum (Kudo, 2018). Ids
/// equal the ids of tokenizers' `Unigram`. Of equal sums the one with the earlier last token counts. Unknown characters
/// that follow each other are one token.
///
/// Takes time in proportion to the word's bytes and the longest token's.
class Unigram : public TokenModel {
 public:
  /// @throws c10::ValueError  naming file and key of an unknown or unfit value.
  explicit Unigram(const JsonField& model);

  void append_ids(std::string_view word, std::vector<int32_t>& ids) const override;
  std::vector<std::pair<std::string, int32_t>> vocabulary() const override;
  void write(nlohmann::json& model) const override;

 private:
  /// The best way to the end of a part of the word.
  struct Node {
    double score = 0;
    int64_t start = -1;  // of its last token; -1: there is none yet
    int32_t id = -1;
  };
  void append_unknown(std::string_view part, std::vector<int32_t>& ids) const;

  std::vector<std::pair<std::string, double>> pieces_;  // by id
  DoubleArrayTrie trie_;                                // of equal pieces the last counts
  std::vector<double> scores_;                          // by id
  double unk_score_ = 0;
  int32_t unk_id_ = -1;
  bool byte_fallback_ = false;
  std::array<int32_t, 256> byte_ids_;
};

}  // namespace mezzo::text
