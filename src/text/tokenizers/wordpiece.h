#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/tokenizers/double_array_trie.h"

namespace mezzo::text {

/// Splits a word into the longest pieces that the vocabulary has, from left to right.
class WordPiece {
 public:
  /// @param trie                 the vocabulary; must outlive this.
  /// @param continuation_prefix  how pieces inside a word begin in the vocabulary: "##".
  /// @param max_chars            longer words, in code points, are unknown.
  WordPiece(const DoubleArrayTrie& trie, std::string_view continuation_prefix, uint64_t max_chars, int32_t unk_id)
      : trie_(&trie), inside_(trie.walk(0, continuation_prefix)), max_chars_(max_chars), unk_id_(unk_id) {}

  /// Appends the ids of a word (valid UTF-8, not empty), or the unknown token's
  /// where it cannot be split.
  void append_ids(std::string_view word, std::vector<int32_t>& ids) const {
    const size_t size_before = ids.size();
    if (word.size() > max_chars_ && count_code_points(word) > max_chars_) {
      ids.push_back(unk_id_);
      return;
    }
    int32_t root = 0;
    while (!word.empty()) {
      const DoubleArrayTrie::Match piece = root < 0 ? DoubleArrayTrie::Match() : trie_->longest_prefix(root, word);
      if (piece.id < 0) {
        ids.resize(size_before);
        ids.push_back(unk_id_);
        return;
      }
      ids.push_back(piece.id);
      word.remove_prefix(piece.length);
      root = inside_;
    }
  }

 private:
  static uint64_t count_code_points(std::string_view text) {
    uint64_t count = 0;
    for (char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    return count;
  }

  const DoubleArrayTrie* trie_;
  int32_t inside_;  // the node behind the prefix, where pieces inside a word begin; -1 without any
  uint64_t max_chars_;
  int32_t unk_id_;
};

}  // namespace mezzo::text
