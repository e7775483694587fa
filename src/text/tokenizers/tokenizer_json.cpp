#include "text/tokenizers/tokenizer_json.h"

namespace mezzo::text {

std::string model_type(const JsonField& model) {
  if (model.has("type")) return model["type"].as_string();
  return model.has("merges") ? "BPE" : model.has("continuing_subword_prefix") ? "WordPiece" : "Unigram";
}

void check_tokenizer_json_sections(const JsonField& root) {
  root.allowed_keys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                     "post_processor", "decoder", "model"});
  // Nothing of these makes ids but the side of truncation; still a key that nobody knows might.
  if (!root["truncation"].is_null()) {
    root["truncation"].allowed_keys({"direction", "max_length", "strategy", "stride"});
  }
  if (!root["padding"].is_null()) {
    root["padding"].allowed_keys({"strategy", "direction", "pad_to_multiple_of", "pad_id", "pad_type_id", "pad_token"});
  }
}

std::optional<std::string> read_padding_token(const JsonField& root) {
  const JsonField padding = root["padding"];
  if (padding.is_null()) return std::nullopt;
  return padding["pad_token"].as_string();
}

TokenList read_tokenizer_json_added_tokens(const JsonField& root) {
  TokenList list;
  const JsonField field = root["added_tokens"];
  if (field.is_null()) return list;
  for (size_t i = 0; i < field.as_array().size(); ++i) {
    const JsonField entry = field.element(i);
    entry.allowed_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token = read_added_token(entry, /*special=*/false);
    token.id = entry["id"].as_id();
    entry.expect(list.add_if_new(token),
                 "a token that is not listed before, but " + quoted_json(token.content) + " is there twice");
  }
  return list;
}

}  // namespace mezzo::text
