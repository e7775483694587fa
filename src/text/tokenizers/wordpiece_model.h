#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizers/json_vocab.h"
#include "text/tokenizers/token_model.h"
#include "text/tokenizers/wordpiece.h"

namespace mezzo::text {

/// The vocabulary of a model that has a WordPiece's keys and no others.
inline std::vector<std::pair<std::string, int32_t>> read_wordpiece_vocab(const JsonField& model) {
  model.allowed_keys({"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
  return read_json_vocab(model["vocab"]);
}

inline uint64_t read_max_chars_per_word(const JsonField& model) {
  const JsonField field = model["max_input_chars_per_word"];
  field.expect(field.value().is_number_unsigned(), "a whole number from 0");
  return field.value().get<uint64_t>();
}

/// WordPiece as a model of tokenizer.json.
class WordPieceModel : public TokenModel {
 public:
  explicit WordPieceModel(const JsonField& model)
      : tokens_(read_wordpiece_vocab(model)),
        trie_(std::vector<std::pair<std::string_view, int32_t>>(tokens_.begin(), tokens_.end())),
        wordpiece_(
            trie_, model["continuing_subword_prefix"].as_string(), read_max_chars_per_word(model), find_unk(model)) {}

  void append_ids(std::string_view word, std::vector<int32_t>& ids) const override { wordpiece_.append_ids(word, ids); }
  std::vector<std::pair<std::string, int32_t>> vocabulary() const override { return tokens_; }
  void write(nlohmann::json& model) const override {
    model["vocab"] = nlohmann::json::object();
    for (const auto& [token, id] : tokens_) model["vocab"][token] = id;
  }

 private:
  int32_t find_unk(const JsonField& model) const {
    const int32_t id = trie_.find(model["unk_token"].as_string());
    model["unk_token"].expect(id >= 0, "a token of the vocabulary");
    return id;
  }

  std::vector<std::pair<std::string, int32_t>> tokens_;
  DoubleArrayTrie trie_;
  WordPiece wordpiece_;
};

}  // namespace mezzo::text
