#pragma once

#include <filesystem>

#include "text/tokenizers/added_token_list.h"
#include "text/tokenizers/tokenizer_files.h"

namespace mezzo::text {

/// tokenizer.json, all of it, as tokenizers reads it.
/// @param added  its added tokens.
TokenizerSpec read_tokenizer_json(const std::filesystem::path& path, TokenList& added);

}  // namespace mezzo::text
