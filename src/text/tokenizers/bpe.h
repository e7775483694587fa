#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizers/double_array_trie.h"
#include "text/tokenizers/json_field.h"
#include "text/tokenizers/token_model.h"

namespace mezzo::text {

/// The results of merging two tokens, by their ids: a hash table without deletion.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = UINT32_MAX;  // the order of merging; UINT32_MAX: there is none
    int32_t id = -1;             // of the merged token
  };

  explicit MergeTable(size_t count = 0);

  void insert(int32_t left, int32_t right, Merge merge) { *place(left, right) = {key(left, right), merge}; }
  Merge find(int32_t left, int32_t right) const { return place(left, right)->merge; }

 private:
  struct Entry {
    uint64_t key = UINT64_MAX;
    Merge merge;
  };
  static uint64_t key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  const Entry* place(int32_t left, int32_t right) const {
    const uint64_t k = key(left, right);
    uint64_t hash = (k ^ k >> 29) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93u;
    size_t i = static_cast<size_t>(hash >> shift_);
    while (entries_[i].key != k && entries_[i].key != UINT64_MAX) i = (i + 1) & (entries_.size() - 1);
    return &entries_[i];
  }
  Entry* place(int32_t left, int32_t right) { return const_cast<Entry*>(std::as_const(*this).place(left, right)); }

  std::vector<Entry> entries_;
  int shift_;
};

/// The ids of whole words of up to 16 bytes.
class WordTable {
 public:
  static constexpr size_t kMaxBytes = 16;

  explicit WordTable(size_t count = 0);

  void insert(std::string_view word, int32_t id);
  /// -1 if it is not there.
  int32_t find(std::string_view word) const {
    if (word.size() > kMaxBytes) return -1;
    return place(pack(word))->id;
  }

 private:
  struct Key {
    uint64_t low = 0, high = 0;
    uint32_t size = 0;  // the bytes themselves do not tell, as a word may end with zeros
    bool operator==(const Key&) const = default;
  };
  struct Entry {
    Key key;  // of size 0: free
    int32_t id = -1;
  };
  static Key pack(std::string_view word);
  const Entry* place(const Key& key) const;

  std::vector<Entry> entries_;
  int shift_;
};

/// Byte-pair encoding: starts with the characters of a word, and joins the two neighbours that the earliest merge
/// names, until none is left. Ids equal the ids of tokenizers' `BPE`.
///
/// Takes n log n time for a word of n characters. Words that are tokens are looked up whole: what
/// merging makes of each token is known from the start.
class Bpe : public TokenModel {
 public:
  /// Whether the words of a pre-tokenizer ByteLevel may come as the bytes that they stand for. Bytes written around a
  /// character, or in its place, belong to the character.
  static bool can_read_bytes(const JsonField& model);

  /// @param reads_bytes  words are bytes; tokens write them as byte_level.h does.
  /// @throws c10::ValueError  naming file and key of an unknown or unfit value.
  Bpe(const JsonField& model, bool reads_bytes);

  void append_ids(std::string_view word, std::vector<int32_t>& ids) const override;
  std::vector<std::pair<std::string, int32_t>> vocabulary() const override { return tokens_; }
  void write(nlohmann::json& model) const override;

 private:
  struct Options {
    std::optional<std::string> unk_token;
    std::string prefix;  // continuing_subword_prefix
    std::string suffix;  // end_of_word_suffix
    bool fuse_unk = false;
    bool byte_fallback = false;
    bool ignore_merges = false;
  };
  static Options read_options(const JsonField& model);
  void read_merges(const JsonField& field);
  void add_merge(const JsonField& entry, uint32_t rank, std::string_view left, std::string_view right);
  void find_whole_words();

  void append_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  void append_characters(std::string_view word, std::vector<int32_t>& symbols) const;
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;
  void append_merged(std::string_view word, std::vector<int32_t>& ids) const;

  Options options_;
  bool reads_bytes_;
  std::vector<std::pair<std::string, int32_t>> tokens_;  // ascending by id
  std::vector<std::pair<int32_t, int32_t>> merges_;      // in the file's order
  DoubleArrayTrie trie_;                                 // of tokens as they are written
  MergeTable table_;
  WordTable words_;
  std::array<int32_t, 256> byte_ids_;  // of single bytes: as written for words of bytes, else <0x0A>
  int32_t unk_id_ = -1;
};

}  // namespace mezzo::text
