#include "text/tokenizers/bpe.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "text/io/utf8.h"
#include "text/tokenizers/byte_level.h"
#include "text/tokenizers/vocab_files.h"

namespace mezzo::text {
namespace {

/// Longer words are merged with a heap: n² is less than n log n up to here.
constexpr size_t kShortWord = 40;

size_t table_size(size_t count) { return std::bit_ceil(std::max<size_t>(2 * count + 1, 16)); }
int hash_shift(size_t size) { return 64 - std::countr_zero(size); }

std::vector<std::pair<std::string_view, int32_t>> token_views(
    const std::vector<std::pair<std::string, int32_t>>& tokens) {
  return {tokens.begin(), tokens.end()};
}

/// What characters within a word, or at its end, are written with; "" for null.
std::string read_affix(const JsonField& field) {
  const std::string affix = field.is_null() ? "" : field.as_string();
  constexpr size_t kMaxAffix = 64;  // each character is looked up with it
  field.expect(affix.size() <= kMaxAffix, "a string of at most " + std::to_string(kMaxAffix) + " bytes");
  return affix;
}

}  // namespace

MergeTable::MergeTable(size_t count) : entries_(table_size(count)), shift_(hash_shift(entries_.size())) {}

WordTable::WordTable(size_t count) : entries_(table_size(count)), shift_(hash_shift(entries_.size())) {}

WordTable::Key WordTable::pack(std::string_view word) {
  Key key;
  key.size = static_cast<uint32_t>(word.size());
  std::memcpy(&key.low, word.data(), std::min<size_t>(word.size(), 8));
  if (word.size() > 8) std::memcpy(&key.high, word.data() + 8, word.size() - 8);
  return key;
}

const WordTable::Entry* WordTable::place(const Key& key) const {
  uint64_t hash = (key.low ^ key.size) * 0x9E3779B97F4A7C15u;
  hash = (hash ^ hash >> 32 ^ key.high) * 0xD6E8FEB86659FD93u;
  hash = (hash ^ hash >> 29) * 0x9E3779B97F4A7C15u;
  size_t i = static_cast<size_t>(hash >> shift_);
  while (entries_[i].key.size != 0 && entries_[i].key != key) i = (i + 1) & (entries_.size() - 1);
  return &entries_[i];
}

void WordTable::insert(std::string_view word, int32_t id) {
  const Key key = pack(word);
  *const_cast<Entry*>(place(key)) = {key, id};
}

Bpe::Options Bpe::read_options(const JsonField& model) {
  model.allowed_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                      "byte_fallback", "ignore_merges", "vocab", "merges"});
  Options options;
  if (!model["unk_token"].is_null()) options.unk_token = model["unk_token"].as_string();
  options.prefix = read_affix(model["continuing_subword_prefix"]);
  options.suffix = read_affix(model["end_of_word_suffix"]);
  options.fuse_unk = model.bool_unless_null("fuse_unk", false);
  options.byte_fallback = model.bool_unless_null("byte_fallback", false);
  options.ignore_merges = model.bool_unless_null("ignore_merges", false);
  const JsonField dropout = model["dropout"];
  dropout.expect(dropout.is_null() || dropout.value() == 0.0, "null (a text always has the same ids)");
  return options;
}

bool Bpe::can_read_bytes(const JsonField& model) {
  const Options options = read_options(model);
  return options.prefix.empty() && options.suffix.empty() && !options.byte_fallback;
}

Bpe::Bpe(const JsonField& model, bool reads_bytes)
    : options_(read_options(model)), reads_bytes_(reads_bytes), tokens_(read_json_vocab(model["vocab"])) {
  trie_ = DoubleArrayTrie(token_views(tokens_));
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    std::string token;
    if (reads_bytes_) {
      append_byte_characters({&c, 1}, token);
    } else {
      token = byte_token(byte);
    }
    byte_ids_[byte] = trie_.find(token);
  }
  if (options_.unk_token) {
    unk_id_ = trie_.find(*options_.unk_token);
    const bool has_all_bytes =
        (reads_bytes_ || options_.byte_fallback) && std::ranges::all_of(byte_ids_, [](int32_t id) { return id >= 0; });
    model["unk_token"].expect(unk_id_ >= 0 || has_all_bytes, "a token of the vocabulary, which lacks single bytes");
  }
  read_merges(model["merges"]);
  find_whole_words();
}

void Bpe::read_merges(const JsonField& field) {
  const size_t count = field.as_array().size();
  table_ = MergeTable(count);
  merges_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const nlohmann::json& value = field.value()[i];
    if (value.is_string()) {  // as older files have it
      const std::string_view text = value.get_ref<const std::string&>();
      if (text.starts_with("#version")) continue;  // the first line of a merges.txt
      const size_t space = text.find(' ');
      if (space == text.npos || text.find(' ', space + 1) != text.npos) field.element(i).expect(false, "two tokens");
      add_merge(field, static_cast<uint32_t>(i), text.substr(0, space), text.substr(space + 1));
      continue;
    }
    const bool is_pair = value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string();
    if (!is_pair) field.element(i).expect(false, "two tokens");
    add_merge(field, static_cast<uint32_t>(i), value[0].get_ref<const std::string&>(),
              value[1].get_ref<const std::string&>());
  }
}

void Bpe::add_merge(const JsonField& field, uint32_t rank, std::string_view left, std::string_view right) {
  const auto known_id = [&](std::string_view token) {
    const int32_t id = trie_.find(token);
    TORCH_CHECK_VALUE(id >= 0, field.file(), ": ", field.name(), "[", rank, "] has the token ", quoted_json(token),
                      ", which the vocabulary lacks; fetch the files again");
    return id;
  };
  const int32_t left_id = known_id(left);
  const int32_t right_id = known_id(right);
  std::string merged(left);
  merged.append(right.substr(std::min(options_.prefix.size(), right.size())));
  table_.insert(left_id, right_id, {rank, known_id(merged)});
  merges_.emplace_back(left_id, right_id);
}

/// A word that is a token need not be merged. With `ignore_merges` every token is.
void Bpe::find_whole_words() {
  words_ = WordTable(tokens_.size());
  std::vector<int32_t> ids;
  for (const auto& [token, id] : tokens_) {
    std::optional<std::string> word = reads_bytes_ ? bytes_of_characters(token) : token;
    if (!word || word->empty() || word->size() > WordTable::kMaxBytes) continue;
    ids.clear();
    if (!options_.ignore_merges) append_merged(*word, ids);
    if (options_.ignore_merges || (ids.size() == 1 && ids[0] == id)) words_.insert(*word, id);
  }
}

void Bpe::append_ids(std::string_view word, std::vector<int32_t>& ids) const {
  int32_t id = words_.find(word);
  if (id < 0 && options_.ignore_merges && word.size() > WordTable::kMaxBytes) {
    std::string written;
    if (reads_bytes_) append_byte_characters(word, written);
    id = trie_.find(reads_bytes_ ? written : word);
  }
  if (id >= 0) {
    ids.push_back(id);
  } else {
    append_merged(word, ids);
  }
}

void Bpe::append_merged(std::string_view word, std::vector<int32_t>& ids) const {
  thread_local std::vector<int32_t> symbols;
  symbols.clear();
  append_symbols(word, symbols);
  if (symbols.size() <= kShortWord) {
    merge_short(symbols);
  } else {
    merge_long(symbols);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

void Bpe::append_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  if (!reads_bytes_) return append_characters(word, symbols);
  bool last_is_unk = false;
  for (const char c : word) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    if (id >= 0) {
      symbols.push_back(id);
    } else if (unk_id_ >= 0 && !(options_.fuse_unk && last_is_unk)) {
      symbols.push_back(unk_id_);
    }
    last_is_unk = id < 0;
  }
}

void Bpe::append_characters(std::string_view word, std::vector<int32_t>& symbols) const {
  // tokenizers writes an unknown character when it knows that the next is none to fuse it with.
  // What byte_fallback writes does not end it, so that it comes out before.
  bool unk_waits = false;
  const auto write_unk = [&] {
    if (unk_waits) symbols.push_back(unk_id_);
    unk_waits = false;
  };
  std::string affixed;
  for (const char *p = word.data(), *end = p + word.size(), *start = p; p != end; start = p) {
    decode_utf8(p);
    std::string_view c(start, static_cast<size_t>(p - start));
    const bool has_prefix = start != word.data() && !options_.prefix.empty();
    const bool has_suffix = p == end && !options_.suffix.empty();
    if (has_prefix || has_suffix) {
      affixed = has_prefix ? options_.prefix : "";
      affixed.append(c).append(has_suffix ? options_.suffix : "");
      c = affixed;
    }
    const int32_t id = trie_.find(c);
    if (id >= 0) {
      write_unk();
      symbols.push_back(id);
      continue;
    }
    const auto byte_id = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
    if (options_.byte_fallback && std::ranges::all_of(c, [&](char byte) { return byte_id(byte) >= 0; })) {
      for (const char byte : c) symbols.push_back(byte_id(byte));
      continue;
    }
    if (unk_id_ < 0) continue;
    if (!options_.fuse_unk) write_unk();
    unk_waits = true;
  }
  write_unk();
}

void Bpe::merge_short(std::vector<int32_t>& symbols) const {
  size_t size = symbols.size();
  if (size < 2) return;
  MergeTable::Merge merges[kShortWord];  // merges[i] is that of symbols i and i + 1
  for (size_t i = 0; i + 1 < size; ++i) merges[i] = table_.find(symbols[i], symbols[i + 1]);
  while (size > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < size; ++i) best = merges[i].rank < merges[best].rank ? i : best;
    if (merges[best].rank == UINT32_MAX) break;
    symbols[best] = merges[best].id;
    --size;
    for (size_t i = best + 1; i < size; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = best + 1; i + 1 < size; ++i) merges[i] = merges[i + 1];
    if (best > 0) merges[best - 1] = table_.find(symbols[best - 1], symbols[best]);
    if (best + 1 < size) merges[best] = table_.find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(size);
}

void Bpe::merge_long(std::vector<int32_t>& symbols) const {
  struct Symbol {
    int32_t id;
    int64_t previous, next;  // -1: none
    uint32_t age = 0;        // counts the symbol's changes, which make merges planned before void
    bool gone = false;
  };
  struct Plan {
    uint32_t rank;
    int64_t left;
    uint32_t left_age, right_age;
    int32_t id;
    bool operator<(const Plan& other) const { return std::tie(rank, left) > std::tie(other.rank, other.left); }
  };
  const auto size = static_cast<int64_t>(symbols.size());
  std::vector<Symbol> list;
  list.reserve(symbols.size());
  for (int64_t i = 0; i < size; ++i) list.push_back({symbols[i], i - 1, i + 1 < size ? i + 1 : -1});
  std::priority_queue<Plan> queue;
  const auto plan = [&](int64_t left) {
    if (left < 0 || list[left].next < 0) return;
    const int64_t right = list[left].next;
    const MergeTable::Merge merge = table_.find(list[left].id, list[right].id);
    if (merge.rank != UINT32_MAX) queue.push({merge.rank, left, list[left].age, list[right].age, merge.id});
  };
  for (int64_t i = 0; i + 1 < size; ++i) plan(i);
  while (!queue.empty()) {
    const Plan top = queue.top();
    queue.pop();
    Symbol& left = list[top.left];
    if (left.gone || left.age != top.left_age || left.next < 0 || list[left.next].age != top.right_age) continue;
    Symbol& right = list[left.next];
    left.id = top.id;
    ++left.age;
    right.gone = true;
    left.next = right.next;
    if (left.next >= 0) list[left.next].previous = top.left;
    plan(left.previous);
    plan(top.left);
  }
  size_t written = 0;
  for (const Symbol& symbol : list) {
    if (!symbol.gone) symbols[written++] = symbol.id;
  }
  symbols.resize(written);
}

void Bpe::write(nlohmann::json& model) const {
  model["vocab"] = nlohmann::json::object();
  for (const auto& [token, id] : tokens_) model["vocab"][token] = id;
  std::unordered_map<int32_t, const std::string*> by_id;  // ids may have gaps
  for (const auto& [token, id] : tokens_) by_id[id] = &token;
  model["merges"] = nlohmann::json::array();
  for (const auto& [left, right] : merges_) {
    model["merges"].push_back(nlohmann::json::array({*by_id.at(left), *by_id.at(right)}));
  }
}

}  // namespace mezzo::text
