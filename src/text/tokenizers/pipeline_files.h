#pragma once

#include <filesystem>

#include "text/tokenizers/pipeline_tokenizer.h"

namespace mezzo::text {

/// The tokenizer of a folder, as transformers' class reads it.
/// "TokenizersBackend" takes all of tokenizer.json; the others take its vocabulary, merges, charsmap and added tokens,
/// and make the rest by the settings of tokenizer_config.json. Without tokenizer.json they read a model of
/// sentencepiece, vocab.json and merges.txt, or vocab.txt.
/// @throws c10::ValueError  naming file and key of a missing, broken or unknown value.
PipelineSpec read_pipeline_folder(const std::filesystem::path& folder);

/// The tokenizer of an uncased BERT with the vocabulary of a vocab.txt.
PipelineSpec read_bert_vocab(const std::filesystem::path& vocab_txt);

}  // namespace mezzo::text
