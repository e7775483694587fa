#include "text/tokenizers/unigram.h"

#include <algorithm>
#include <limits>

#include "text/io/utf8.h"
#include "text/tokenizers/added_tokens.h"
#include "text/tokenizers/byte_level.h"

namespace mezzo::text {
namespace {

constexpr double kUnkPenalty = 10;  // below the least score

std::vector<std::pair<std::string_view, int32_t>> last_ones_first(
    const std::vector<std::pair<std::string, double>>& pieces) {
  std::vector<std::pair<std::string_view, int32_t>> keys;
  for (size_t i = pieces.size(); i-- > 0;) keys.emplace_back(pieces[i].first, static_cast<int32_t>(i));
  return keys;
}

}  // namespace

Unigram::Unigram(const JsonField& model) : byte_fallback_(model.bool_or("byte_fallback", false)) {
  model.allowed_keys({"type", "unk_id", "byte_fallback", "vocab"});
  const JsonField vocab = model["vocab"];
  const size_t count = vocab.as_array().size();
  vocab.expect(count > 0 && count < std::numeric_limits<int32_t>::max(), "a list of tokens and scores");
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < count; ++i) {
    const nlohmann::json& entry = vocab.value()[i];
    const bool is_piece = entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number();
    if (!is_piece) vocab.element(i).expect(false, "a token and its score");
    pieces_.emplace_back(entry[0].get<std::string>(), entry[1].get<double>());
    check_token_length(vocab.file() + ": " + vocab.name(), pieces_.back().first);
    scores_.push_back(pieces_.back().second);
    least = std::min(least, scores_.back());
  }
  unk_score_ = least - kUnkPenalty;
  const JsonField unk = model["unk_id"];
  if (!unk.is_null()) {
    unk_id_ = unk.as_id();
    unk.expect(static_cast<size_t>(unk_id_) < count, "an id of the vocabulary");
  }
  unk.expect(unk_id_ >= 0, "the id of the unknown token");
  trie_ = DoubleArrayTrie(last_ones_first(pieces_));
  for (unsigned byte = 0; byte < 256; ++byte) byte_ids_[byte] = trie_.find(byte_token(byte));
}

void Unigram::append_ids(std::string_view word, std::vector<int32_t>& ids) const {
  thread_local std::vector<Node> nodes;  // by their ends
  nodes.assign(word.size() + 1, Node());
  const auto improve = [&](size_t end, double score, size_t start, int32_t id) {
    Node& node = nodes[end];
    if (node.start < 0 || score > node.score) node = {score, static_cast<int64_t>(start), id};
  };
  const char* p = word.data();
  for (size_t start = 0; start < word.size(); start = static_cast<size_t>(p - word.data())) {
    decode_utf8(p);
    const auto character_end = static_cast<size_t>(p - word.data());
    const double score = nodes[start].score;
    bool has_character = false;
    int32_t node = 0;
    for (size_t end = start; end < word.size();) {
      node = trie_.child(node, word[end++]);
      if (node < 0) break;
      const int32_t id = trie_.id(node);
      if (id < 0) continue;
      improve(end, scores_[static_cast<size_t>(id)] + score, start, id);
      has_character |= end == character_end;
    }
    if (!has_character) improve(character_end, unk_score_ + score, start, unk_id_);
  }

  const size_t before = ids.size();
  for (size_t end = word.size(); end > 0;) {
    size_t start = static_cast<size_t>(nodes[end].start);
    if (nodes[end].id == unk_id_) {
      while (start > 0 && nodes[start].id == unk_id_) start = static_cast<size_t>(nodes[start].start);
      append_unknown(word.substr(start, end - start), ids);
    } else {
      ids.push_back(nodes[end].id);
    }
    end = start;
  }
  std::reverse(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end());
}

/// In reverse, as the path is walked.
void Unigram::append_unknown(std::string_view part, std::vector<int32_t>& ids) const {
  const auto byte_id = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  const int32_t whole = trie_.find(part);  // may be a token anyway, if one too unlikely
  if (whole < 0 && byte_fallback_ && std::ranges::all_of(part, [&](char byte) { return byte_id(byte) >= 0; })) {
    for (size_t i = part.size(); i-- > 0;) ids.push_back(byte_id(part[i]));
  } else {
    ids.push_back(whole >= 0 ? whole : unk_id_);
  }
}

std::vector<std::pair<std::string, int32_t>> Unigram::vocabulary() const {
  std::vector<std::pair<std::string, int32_t>> tokens;
  for (size_t i = 0; i < pieces_.size(); ++i) tokens.emplace_back(pieces_[i].first, static_cast<int32_t>(i));
  return tokens;
}

void Unigram::write(nlohmann::json& model) const {
  model["vocab"] = nlohmann::json::array();
  for (const auto& [token, score] : pieces_) model["vocab"].push_back(nlohmann::json::array({token, score}));
}

}  // namespace mezzo::text
