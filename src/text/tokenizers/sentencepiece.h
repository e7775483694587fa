#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/tokenizers/added_tokens.h"

namespace mezzo::text {

/// A model of sentencepiece, as its trainer writes it, as far as it makes ids. Missing fields have sentencepiece's
/// defaults.
struct SentencepieceModel {
  enum class Kind : int32_t { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };
  enum class PieceType : int32_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::kNormal;
  };

  std::string file;
  std::vector<Piece> pieces;  // by id, all different
  Kind kind = Kind::kUnigram;
  bool byte_fallback = false;
  int32_t unk_id = 0, bos_id = 1, eos_id = 2;  // -1: there is none
  std::string unk_piece = "<unk>", bos_piece = "<s>", eos_piece = "</s>";
  std::string charsmap;  // of the normalizer, in sentencepiece's format; empty: there is none
};

/// @throws c10::ValueError  naming the file and its broken or unknown part.
SentencepieceModel read_sentencepiece_model(const std::filesystem::path& path);

/// "model" with "vocab", the pieces and their scores, and the charsmap as "normalizer", or null. A class of
/// transformers makes its Unigram tokenizer from these.
nlohmann::json unigram_vocabulary(const SentencepieceModel& model);

/// The whole tokenizer.json that transformers makes of a model without a class. White space is written as "▁", and
/// nothing is put around texts.
/// @throws c10::ValueError  if the merges of its pieces would take many times the file's memory.
nlohmann::json whole_document(const SentencepieceModel& model);

/// Pieces that are found in a text first: control pieces, such as "<s>", and user-defined pieces.
std::vector<AddedToken> pieces_found_first(const SentencepieceModel& model);

}  // namespace mezzo::text
