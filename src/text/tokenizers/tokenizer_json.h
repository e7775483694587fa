#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "text/tokenizers/added_token_list.h"
#include "text/tokenizers/tokenizer_files.h"

namespace mezzo::text {

/// tokenizer.json of a BERT, all of it, as tokenizers reads it.
/// @param added    its added tokens.
/// @param lengths  its sections "truncation" and "padding", of which transformers takes the side and the token.
TokenizerSpec read_tokenizer_json(const std::filesystem::path& path, TokenList& added, nlohmann::json& lengths);

/// The type of a tokenizer.json's "model"; files from before it was written tell it by their other keys.
std::string model_type(const JsonField& model);

/// Refuses sections, and keys in "truncation" and "padding", that are not known.
/// @throws c10::ValueError  naming file and key.
void check_tokenizer_json_sections(const JsonField& root);

/// The pad_token of the section "padding", which transformers takes where tokenizer_config.json has none; or nullopt.
std::optional<std::string> read_padding_token(const JsonField& root);

/// The section "added_tokens".
TokenList read_tokenizer_json_added_tokens(const JsonField& root);

/// `{"type": "BertNormalizer", ...}`
BertTokenizerOptions read_bert_normalizer(const JsonField& field);

/// Whether BertTokenizer is what the document describes.
bool is_bert_document(const nlohmann::json& document);

}  // namespace mezzo::text
