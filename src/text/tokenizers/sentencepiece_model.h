#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace mezzo::text {

/// A model of sentencepiece, as its trainer writes it, as far as it makes ids. What the file leaves out has
/// sentencepiece's defaults.
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

/// @throws c10::ValueError  naming the file and what is broken, or not known, in it.
SentencepieceModel read_sentencepiece_model(const std::filesystem::path& path);

}  // namespace mezzo::text
