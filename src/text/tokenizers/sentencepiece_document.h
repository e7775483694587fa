#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "text/tokenizers/added_tokens.h"
#include "text/tokenizers/sentencepiece_model.h"

namespace mezzo::text {

/// "model" with "vocab", the pieces and their scores, and the charsmap as "normalizer", or null: what a class of
/// transformers makes its Unigram tokenizer of.
nlohmann::json unigram_vocabulary(const SentencepieceModel& model);

/// The whole tokenizer.json that transformers makes of a model where no class says more: white space is written as
/// "▁", and nothing is put around texts.
/// @throws c10::ValueError  where the merges of its pieces would take many times the file's memory.
nlohmann::json whole_document(const SentencepieceModel& model);

/// Pieces that texts are searched for before all else: control pieces, such as "<s>", and those that users have
/// defined.
std::vector<AddedToken> pieces_found_first(const SentencepieceModel& model);

}  // namespace mezzo::text
