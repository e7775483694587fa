#include "text/tokenizers/sentencepiece.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "text/io/protobuf.h"
#include "text/io/read_file.h"
#include "text/tokenizers/base64.h"
#include "text/tokenizers/double_array_trie.h"
#include "text/tokenizers/json_field.h"

namespace mezzo::text {

namespace {

using Model = SentencepieceModel;

// Numbers of fields come from sentencepiece's messages of these names.

Model::Piece read_piece(ProtobufReader message) {
  Model::Piece piece;
  while (message.next_field()) {
    switch (message.field()) {
      case 1: piece.text = message.string("piece"); break;
      case 2: piece.score = message.float32("score"); break;
      case 3: {
        const int32_t type = message.int32("type");
        TORCH_CHECK_VALUE(type >= 1 && type <= 6, message.where(), ": type must be from 1 to 6, got ", type,
                          "; fetch the file again");
        piece.type = static_cast<Model::PieceType>(type);
        break;
      }
      default: message.refuse_field();
    }
  }
  TORCH_CHECK_VALUE(!piece.text.empty(), message.where(), ": a piece is empty; fetch the file again");
  TORCH_CHECK_VALUE(std::isfinite(piece.score), message.where(), ": the score of ", quoted_json(piece.text),
                    " is not a number; fetch the file again");
  check_token_length(message.where(), piece.text);
  return piece;
}

void read_trainer_spec(ProtobufReader message, Model& model) {
  while (message.next_field()) {
    switch (message.field()) {
      case 3: {
        const int32_t kind = message.int32("model_type");
        constexpr const char* kNames[] = {"none that mezzo knows", "unigram", "bpe", "word", "char"};
        TORCH_CHECK_VALUE(kind == 1 || kind == 2, message.where(), ": model_type must be unigram or bpe, got ",
                          kNames[kind == 3 || kind == 4 ? kind : 0], "; name a model of one of these");
        model.kind = static_cast<Model::Kind>(kind);
        break;
      }
      case 24:
        TORCH_CHECK_VALUE(!message.boolean("treat_whitespace_as_suffix"), message.where(),
                          ": treat_whitespace_as_suffix must be false, got true; train the model without");
        break;
      case 35: model.byte_fallback = message.boolean("byte_fallback"); break;
      case 40: model.unk_id = message.int32("unk_id"); break;
      case 41: model.bos_id = message.int32("bos_id"); break;
      case 42: model.eos_id = message.int32("eos_id"); break;
      case 45: model.unk_piece = message.string("unk_piece"); break;
      case 46: model.bos_piece = message.string("bos_piece"); break;
      case 47: model.eos_piece = message.string("eos_piece"); break;
      default: message.skip();  // how it was trained
    }
  }
}

/// Of the flags only escape_whitespaces counts: the class of transformers defines any other treatment of white space.
void read_normalizer_spec(ProtobufReader message, Model& model) {
  std::string name;
  while (message.next_field()) {
    switch (message.field()) {
      case 1: name = message.string("name"); break;
      case 2: model.charsmap = message.bytes("precompiled_charsmap"); break;
      case 3: message.boolean("add_dummy_prefix"); break;
      case 4: message.boolean("remove_extra_whitespaces"); break;
      case 5:
        TORCH_CHECK_VALUE(message.boolean("escape_whitespaces"), message.where(),
                          ": escape_whitespaces must be true, got false; train the model with it");
        break;
      case 6: message.string("normalization_rule_tsv"); break;  // a file that the charsmap was made of
      default: message.refuse_field();
    }
  }
  const bool has_rules = !name.empty() && name != "identity";
  TORCH_CHECK_VALUE(!has_rules || !model.charsmap.empty(), message.where(),
                    ": precompiled_charsmap must hold the rules of ", quoted_json(name),
                    ", but it is empty; fetch the file again");
}

/// What sentencepiece itself wants of the pieces.
void check_pieces(const Model& model) {
  std::unordered_set<std::string_view> texts;
  size_t unknown = 0;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Model::Piece& piece = model.pieces[i];
    TORCH_CHECK_VALUE(texts.insert(piece.text).second, model.file, ": the piece ", quoted_json(piece.text),
                      " occurs twice; fetch the file again");
    const bool is_unknown = piece.type == Model::PieceType::kUnknown;
    unknown += is_unknown;
    TORCH_CHECK_VALUE(!is_unknown || model.unk_id == static_cast<int32_t>(i), model.file,
                      ": the unknown piece has the id ", i, ", trainer_spec.unk_id says ", model.unk_id,
                      "; fetch the file again");
  }
  TORCH_CHECK_VALUE(unknown == 1, model.file, ": one piece must be of type unknown, got ", unknown,
                    "; is this a model of sentencepiece?");
}

}  // namespace

SentencepieceModel read_sentencepiece_model(const std::filesystem::path& path) {
  constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;  // far above any model
  const std::string bytes = read_file(path, kMaxFileBytes);
  Model model;
  model.file = path.string();
  ProtobufReader message(bytes, model.file);
  while (message.next_field()) {
    switch (message.field()) {
      case 1: model.pieces.push_back(read_piece(message.message("pieces"))); break;
      case 2: read_trainer_spec(message.message("trainer_spec"), model); break;
      case 3: read_normalizer_spec(message.message("normalizer_spec"), model); break;
      case 4:                         // self_test_data
      case 5: message.skip(); break;  // denormalizer_spec, which makes texts of ids
      default: message.refuse_field();
    }
  }
  check_pieces(model);
  return model;
}

namespace {

using nlohmann::json;
using PieceType = SentencepieceModel::PieceType;

json charsmap_of(const SentencepieceModel& model) {
  if (model.charsmap.empty()) return nullptr;
  return {{"type", "Precompiled"}, {"precompiled_charsmap", encode_base64(model.charsmap)}};
}

json pieces_and_scores(const SentencepieceModel& model) {
  json vocab = json::array();
  for (const auto& piece : model.pieces) vocab.push_back(json::array({piece.text, double{piece.score}}));
  return vocab;
}

/// The places in a text at which a key of `trie`, read from the start, ends.
std::vector<bool> ends_of_keys(const DoubleArrayTrie& trie, std::string_view text) {
  std::vector<bool> ends(text.size() + 1);
  int32_t node = 0;
  for (size_t i = 0; i < text.size() && (node = trie.child(node, text[i])) >= 0; ++i) ends[i + 1] = trie.id(node) >= 0;
  return ends;
}

/// A model of BPE in sentencepiece's format has no merges: any two pieces that make a piece are a merge. The order is
/// by lower id, then by shorter left piece. Takes time and memory in proportion to the pieces' bytes.
/// @throws c10::ValueError  if the pieces are made for it to take more.
json merges_of(const SentencepieceModel& model) {
  constexpr size_t kMostTimes = 16;  // the bytes of the pieces; a language's pieces need two or three times
  size_t bytes = 0, merged_bytes = 0;
  for (const auto& piece : model.pieces) bytes += piece.text.size();
  std::vector<std::string> backwards;
  std::vector<std::pair<std::string_view, int32_t>> keys, backward_keys;
  for (const auto& piece : model.pieces) backwards.emplace_back(piece.text.rbegin(), piece.text.rend());
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    keys.emplace_back(model.pieces[i].text, static_cast<int32_t>(i));
    backward_keys.emplace_back(backwards[i], static_cast<int32_t>(i));
  }
  const DoubleArrayTrie prefixes(std::move(keys)), suffixes(std::move(backward_keys));
  json merges = json::array();
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const std::string& text = model.pieces[i].text;
    const std::vector<bool> left = ends_of_keys(prefixes, text), right = ends_of_keys(suffixes, backwards[i]);
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if (!left[cut] || !right[text.size() - cut]) continue;
      merged_bytes += text.size();
      TORCH_CHECK_VALUE(merged_bytes <= kMostTimes * bytes, model.file,
                        ": its pieces have too many combinations: the merges would need more than ", kMostTimes,
                        " times their memory; fetch the file again");
      merges.push_back({text.substr(0, cut), text.substr(cut)});
    }
  }
  return merges;
}

json bpe(const SentencepieceModel& model) {
  json vocab = json::object();
  for (size_t i = 0; i < model.pieces.size(); ++i) vocab[model.pieces[i].text] = static_cast<uint32_t>(i);
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", model.unk_piece},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", true},
          {"byte_fallback", model.byte_fallback},
          {"ignore_merges", false},
          {"vocab", std::move(vocab)},
          {"merges", merges_of(model)}};
}

json unigram(const SentencepieceModel& model) {
  return {{"type", "Unigram"},
          {"unk_id", static_cast<uint32_t>(model.unk_id)},
          {"byte_fallback", model.byte_fallback},
          {"vocab", pieces_and_scores(model)}};
}

json replace(const char* what, const char* by) {
  return {{"type", "Replace"}, {"pattern", {{"String", what}}}, {"content", by}};
}

}  // namespace

json unigram_vocabulary(const SentencepieceModel& model) {
  return {{"model", {{"vocab", pieces_and_scores(model)}}}, {"normalizer", charsmap_of(model)}};
}

json whole_document(const SentencepieceModel& model) {
  json normalizers = json::array({replace(" ", "▁")});
  if (!model.charsmap.empty()) normalizers.insert(normalizers.begin(), charsmap_of(model));
  json decoders = json::array({replace("▁", " ")});
  if (model.byte_fallback) {
    decoders.push_back({{"type", "ByteFallback"}});
    decoders.push_back({{"type", "Fuse"}});
  }
  return {{"model", model.kind == SentencepieceModel::Kind::kBpe ? bpe(model) : unigram(model)},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", {{"type", "Sequence"}, {"decoders", std::move(decoders)}}}};
}

std::vector<AddedToken> pieces_found_first(const SentencepieceModel& model) {
  std::vector<AddedToken> tokens;
  for (const auto& piece : model.pieces) {
    const bool is_control = piece.type == PieceType::kControl;
    if (!is_control && piece.type != PieceType::kUserDefined) continue;
    tokens.push_back({piece.text, false, false, false, /*normalized=*/false, /*special=*/is_control});
  }
  return tokens;
}

}  // namespace mezzo::text
