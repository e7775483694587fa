// The files of a Hugging Face tokenizer. Every field is checked; what cannot be
// honoured is refused by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/text/tokenizers/bert_tokenizer.h"
#include "text/tokenizers/added_tokens.h"
#include "text/tokenizers/post_processor.h"

namespace mezzo::text {

/// All that makes a BERT tokenizer.
struct TokenizerSpec {
  std::string source;                                  // the file of the vocabulary, for messages
  std::vector<std::pair<std::string, int32_t>> vocab;  // tokens and ids, both distinct, sorted by id
  BertTokenizerOptions options;
  std::string continuation_prefix = "##";
  uint64_t max_chars_per_word = 100;
  std::string unk_token = "[UNK]", pad_token = "[PAD]", cls_token = "[CLS]", sep_token = "[SEP]";
  std::string mask_token = "[MASK]";
  bool needs_mask = true;
  TruncationSide truncation_side = TruncationSide::kRight;
  bool has_token_types = true;           // false: those of a pair are 0, too
  int32_t cls_id = -1, sep_id = -1;      // as the template has them; -1: look them up
  std::vector<AddedToken> added_tokens;  // in the order of addition; an id is -1 where the file has none
};

TokenizerSpec read_tokenizer_folder(const std::filesystem::path& folder);

/// Writes vocab.txt and tokenizer_config.json; see BertTokenizer::save.
/// `added_tokens` have their ids.
/// @param model_max_length  0: left out
/// @param token_types  whether transformers is to pass token_type_ids to the model
void write_tokenizer_folder(const TokenizerSpec& spec,
                            int64_t model_max_length,
                            bool token_types,
                            const std::filesystem::path& folder);

}  // namespace mezzo::text
