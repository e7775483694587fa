#include "text/tokenizers/post_processor.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace mezzo::text {

size_t text_budget(int64_t max_length, size_t num_special) {
  if (max_length == 0) return std::numeric_limits<size_t>::max();
  TORCH_CHECK_VALUE(max_length > 0 && static_cast<uint64_t>(max_length) >= num_special, "max_length is ", max_length,
                    ", but a text has ", num_special, " special tokens. Pass at least ", num_special,
                    ", or 0 for no limit");
  return static_cast<size_t>(max_length) - num_special;
}

bool truncate(std::vector<int32_t>& ids, size_t budget, TruncationSide side) {
  if (ids.size() <= budget) return false;
  if (side == TruncationSide::kLeft) ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(budget));
  ids.resize(budget);
  return true;
}

bool truncate(std::vector<int32_t>& first, std::vector<int32_t>& second, size_t budget, TruncationSide side) {
  if (budget >= first.size() && budget - first.size() >= second.size()) return false;
  const bool first_is_longer = first.size() > second.size();
  std::vector<int32_t>& longer = first_is_longer ? first : second;
  std::vector<int32_t>& shorter = first_is_longer ? second : first;
  truncate(shorter, budget / 2, side);
  truncate(longer, budget - shorter.size(), side);
  return true;
}

PostProcessor::PostProcessor() : single_{{0, {}, 0}}, pair_{{0, {}, 0}, {1, {}, 1}} {}

int32_t PostProcessor::token_id(const JsonField& field) const {
  const int32_t id = field.as_id();
  field.expect(id < vocab_size_, "an id below " + std::to_string(vocab_size_) + ", the size of the vocabulary");
  return id;
}

PostProcessor::PostProcessor(const JsonField& field, int64_t vocab_size) : PostProcessor() {
  vocab_size_ = vocab_size;
  if (!field.is_null()) read(field);
  const auto count = [](const Template& pieces) {
    size_t found = 0;
    for (const Piece& piece : pieces) found += piece.ids.size();
    return found;
  };
  single_special_ = count(single_);
  pair_special_ = count(pair_);
}

void PostProcessor::clear_types() {
  for (Piece& piece : single_) piece.type = 0;
  for (Piece& piece : pair_) piece.type = 0;
}

void PostProcessor::read(const JsonField& field) {
  const std::string& type = field["type"].as_string();
  if (type == "TemplateProcessing") {
    field.allowed_keys({"type", "single", "pair", "special_tokens"});
    single_ = read_template(field["single"], field["special_tokens"], /*is_pair=*/false);
    pair_ = read_template(field["pair"], field["special_tokens"], /*is_pair=*/true);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    read_fixed(field, type == "RobertaProcessing");
  } else if (type == "Sequence") {
    field.allowed_keys({"type", "processors"});
    const JsonField list = field["processors"];
    size_t adding = 0;
    for (size_t i = 0; i < list.as_array().size(); ++i) {
      const JsonField step = list.element(i);
      // ByteLevel only moves offsets, which mezzo has none of.
      adding += step["type"].value() != "ByteLevel";
      step.expect(adding <= 1, "ByteLevel (behind a processor that adds tokens)");
      read(step);
    }
  } else {
    field.expect(type == "ByteLevel",
                 "one of TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel and Sequence");
    field.allowed_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  }
}

void PostProcessor::read_fixed(const JsonField& field, bool is_roberta) {
  const auto id_of = [&](const char* key) {
    const JsonField token = field[key];
    token.expect(token.as_array().size() == 2, "a token and its id");
    token.element(0).as_string();
    return token_id(token.element(1));
  };
  if (is_roberta) {
    field.allowed_keys({"type", "cls", "sep", "trim_offsets", "add_prefix_space"});  // the last two move offsets only
  } else {
    field.allowed_keys({"type", "cls", "sep"});
  }
  const Piece cls = {-1, {id_of("cls")}, 0};
  const Piece sep = {-1, {id_of("sep")}, 0};
  const int32_t second = is_roberta ? 0 : 1;
  single_ = {cls, {0, {}, 0}, sep};
  pair_ = single_;
  if (is_roberta) pair_.push_back(sep);
  pair_.push_back({1, {}, second});
  pair_.push_back({-1, sep.ids, second});
}

PostProcessor::Template PostProcessor::read_template(const JsonField& pieces,
                                                     const JsonField& special_tokens,
                                                     bool is_pair) const {
  constexpr size_t kMaxPieces = 64, kMaxIds = 1000;  // a text is written as often, and each window of it has the ids
  pieces.expect(pieces.as_array().size() <= kMaxPieces,
                "an array of at most " + std::to_string(kMaxPieces) + " pieces");
  Template result;
  size_t count = 0;
  for (size_t i = 0; i < pieces.as_array().size(); ++i) {
    const JsonField piece = pieces.element(i);
    const bool is_sequence = piece.has("Sequence");
    piece.expect(is_sequence != piece.has("SpecialToken"), "a Sequence or a SpecialToken");
    piece.allowed_keys({"Sequence", "SpecialToken"});
    const JsonField body = piece[is_sequence ? "Sequence" : "SpecialToken"];
    body.allowed_keys({"id", "type_id"});
    const std::string& id = body["id"].as_string();
    if (is_sequence) {
      body["id"].expect(id == "A" || (id == "B" && is_pair), is_pair ? "A or B" : "A");
      result.push_back({id == "A" ? 0 : 1, {}, body["type_id"].as_id()});
      continue;
    }
    Piece special{-1, {}, body["type_id"].as_id()};
    special_tokens[id].allowed_keys({"id", "ids", "tokens"});
    const JsonField ids = special_tokens[id]["ids"];
    count += ids.as_array().size();
    piece.expect(count <= kMaxIds, "one of pieces that have at most " + std::to_string(kMaxIds) + " ids together");
    for (size_t k = 0; k < ids.as_array().size(); ++k) special.ids.push_back(token_id(ids.element(k)));
    result.push_back(std::move(special));
  }
  return result;
}

std::vector<std::vector<int32_t>> windows_of(const std::vector<int32_t>& ids,
                                             size_t budget,
                                             int64_t stride,
                                             TruncationSide side) {
  TORCH_CHECK_VALUE(stride >= 0 && static_cast<size_t>(stride) < budget, "windows that overlap by ", stride,
                    " tokens hold ", budget, " of a text; pass a stride from 0 to ", budget - 1);
  if (ids.size() <= budget) return {ids};
  std::vector<std::vector<int32_t>> windows;
  const size_t step = budget - static_cast<size_t>(stride);
  for (size_t passed = 0;; passed += step) {
    const size_t left = ids.size() - passed, count = std::min(budget, left);
    const auto begin =
        ids.begin() + static_cast<std::ptrdiff_t>(side == TruncationSide::kRight ? passed : left - count);
    windows.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(count));
    if (count == left) return windows;
  }
}

Encoding PostProcessor::process(const IdsOfWords& words) const {
  Encoding encoding = process(words.ids);
  encoding.truncated = words.truncated;
  for (const Piece& piece : single_) {
    if (piece.sequence < 0) {
      encoding.word_ids.insert(encoding.word_ids.end(), piece.ids.size(), -1);
    } else {
      encoding.word_ids.insert(encoding.word_ids.end(), words.word_ids.begin(), words.word_ids.end());
    }
  }
  return encoding;
}

Encoding PostProcessor::fill(const Template& pieces, const Texts& texts) {
  Encoding encoding;
  size_t size = 0;
  const auto ids_of = [&](const Piece& piece) -> const std::vector<int32_t>& {
    return piece.sequence < 0 ? piece.ids : piece.sequence == 0 ? *texts.first : *texts.second;
  };
  for (const Piece& piece : pieces) size += ids_of(piece).size();
  encoding.input_ids.reserve(size);
  encoding.token_type_ids.reserve(size);
  for (const Piece& piece : pieces) {
    const std::vector<int32_t>& ids = ids_of(piece);
    encoding.input_ids.insert(encoding.input_ids.end(), ids.begin(), ids.end());
    encoding.token_type_ids.insert(encoding.token_type_ids.end(), ids.size(), piece.type);
  }
  return encoding;
}

}  // namespace mezzo::text
