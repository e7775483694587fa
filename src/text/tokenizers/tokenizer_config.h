#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "text/tokenizers/added_token_list.h"
#include "text/tokenizers/tokenizer_files.h"

namespace mezzo::text {

bool is_there(const std::filesystem::path& path);

/// tokenizer_config.json with the older files beside it, as far as they make ids.
class TokenizerConfig {
 public:
  explicit TokenizerConfig(const std::filesystem::path& folder);

  JsonField root() const { return {config_, file_, ""}; }

  /// Whether the class takes all of tokenizer.json. BERT's own classes take only its
  /// vocabulary and added tokens.
  bool uses_tokenizer_json_as_is() const;

  BertTokenizerOptions options() const;

  /// transformers writes 10^30 where there is no limit.
  int64_t model_max_length() const;

  /// Names of special tokens; a name that the config lacks keeps its value.
  void read_special_tokens(TokenizerSpec& spec) const;

  /// The added tokens in the order in which transformers adds them.
  TokenList added_tokens(TokenList from_tokenizer_json, bool as_is, const TokenizerSpec& spec) const;

 private:
  /// special_tokens_map.json, from before added_tokens_decoder, overrules the config.
  void merge_special_tokens_map();

  TokenList read_decoder() const;

  TokenList read_added_tokens_json() const;

  /// A named token, which errors tell the file of.
  JsonField named(const std::string& key) const {
    return JsonField(config_, is_in_map_.contains(key) ? map_file_ : file_, "")[key];
  }

  void add_named(const TokenizerSpec& spec, bool as_is, TokenList& list) const;

  std::filesystem::path folder_;
  std::string file_, map_file_;
  std::set<std::string> is_in_map_;  ///< keys that special_tokens_map.json has set
  nlohmann::json config_ = nlohmann::json::object();
  bool exists_ = false;
};

}  // namespace mezzo::text
