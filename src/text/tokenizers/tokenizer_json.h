#pragma once

#include <optional>
#include <string>

#include "text/tokenizers/added_tokens.h"

namespace mezzo::text {

/// The type of a tokenizer.json's "model"; files from before it was written tell it by their other keys.
std::string model_type(const JsonField& model);

/// Refuses sections, and keys in "truncation" and "padding", that are not known.
/// @throws c10::ValueError  naming file and key.
void check_tokenizer_json_sections(const JsonField& root);

/// The pad_token of the section "padding", which transformers takes where tokenizer_config.json has none; or nullopt.
std::optional<std::string> read_padding_token(const JsonField& root);

/// The section "added_tokens".
TokenList read_tokenizer_json_added_tokens(const JsonField& root);

}  // namespace mezzo::text
