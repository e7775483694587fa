#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizers/double_array_trie.h"
#include "text/tokenizers/token_model.h"
#include "text/tokenizers/vocab_files.h"

namespace mezzo::text {

/// WordPiece: splits a word into the longest pieces that the vocabulary has, from left to right.
class WordPiece : public TokenModel {
 public:
  /// @throws c10::ValueError  naming file and key
  explicit WordPiece(const JsonField& model) : tokens_(read_json_vocab(model["vocab"])) {
    model.allowed_keys({"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
    trie_ = DoubleArrayTrie(std::vector<std::pair<std::string_view, int32_t>>(tokens_.begin(), tokens_.end()));
    inside_ = trie_.walk(0, model["continuing_subword_prefix"].as_string());
    const JsonField max_chars = model["max_input_chars_per_word"];
    max_chars.expect(max_chars.value().is_number_unsigned(), "a whole number from 0");
    max_chars_ = max_chars.value().get<uint64_t>();
    unk_id_ = trie_.find(model["unk_token"].as_string());
    model["unk_token"].expect(unk_id_ >= 0, "a token of the vocabulary");
  }

  /// Appends the unknown token's id for a word that is too long or that the pieces do not make.
  void append_ids(std::string_view word, std::vector<int32_t>& ids) const override {
    const size_t size_before = ids.size();
    const auto begins_character = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
    const auto is_too_long = [&] {
      return word.size() > max_chars_ &&
             static_cast<uint64_t>(std::ranges::count_if(word, begins_character)) > max_chars_;
    };
    if (is_too_long()) {
      ids.push_back(unk_id_);
      return;
    }
    for (int32_t root = 0; !word.empty(); root = inside_) {
      const DoubleArrayTrie::Match piece = root < 0 ? DoubleArrayTrie::Match() : trie_.longest_prefix(root, word);
      if (piece.id < 0) {
        ids.resize(size_before);
        ids.push_back(unk_id_);
        return;
      }
      ids.push_back(piece.id);
      word.remove_prefix(piece.length);
    }
  }

  std::vector<std::pair<std::string, int32_t>> vocabulary() const override { return tokens_; }
  void write(nlohmann::json& model) const override {
    model["vocab"] = nlohmann::json::object();
    for (const auto& [token, id] : tokens_) model["vocab"][token] = id;
  }

 private:
  std::vector<std::pair<std::string, int32_t>> tokens_;
  DoubleArrayTrie trie_;
  int32_t inside_;  // the node behind the prefix, at which pieces inside a word begin; -1 without any
  uint64_t max_chars_;
  int32_t unk_id_;
};

}  // namespace mezzo::text
