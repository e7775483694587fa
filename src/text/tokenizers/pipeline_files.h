#pragma once

#include <filesystem>
#include <string>

#include "text/tokenizers/pipeline_tokenizer.h"
#include "text/tokenizers/tokenizer_config.h"

namespace mezzo::text {

/// The folder of a tokenizer that is no BertTokenizer, as transformers' class of that name reads it.
/// "TokenizersBackend" takes all of tokenizer.json; the others take its vocabulary, merges, charsmap and added tokens,
/// and make the rest by the settings of tokenizer_config.json. Without tokenizer.json they read a model of
/// sentencepiece, or vocab.json and merges.txt.
/// @param name  what TokenizerConfig::tokenizer_class says.
/// @throws c10::ValueError  naming file and key of what is missing, broken or not known.
PipelineSpec read_pipeline_folder(const std::filesystem::path& folder,
                                  const TokenizerConfig& config,
                                  const std::string& name);

}  // namespace mezzo::text
