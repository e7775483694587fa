#include "text/tokenizers/sentencepiece_document.h"

#include <c10/util/Exception.h>

#include <string>
#include <string_view>
#include <utility>

#include "text/tokenizers/base64.h"
#include "text/tokenizers/double_array_trie.h"

namespace mezzo::text {
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

/// A model of BPE in sentencepiece's format has no merges: any two pieces that make a piece are one, the earlier
/// the lower its id, then the shorter the left. Takes time and memory in proportion to the pieces' bytes.
/// @throws c10::ValueError  where the pieces are made for it to take more.
json merges_of(const SentencepieceModel& model) {
  constexpr size_t kMostTimes = 16;  // the bytes of the pieces; those of a language have two or three
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
                        ": its pieces can be put together in so many ways "
                        "that the merges would take more than ",
                        kMostTimes, " times their memory; fetch the file again");
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
