#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "text/io/known_fields.h"
#include "text/tokenizers/added_tokens.h"
#include "text/tokenizers/post_processor.h"

namespace mezzo::text {

bool is_there(const std::filesystem::path& path);

/// The named special tokens, in the order in which transformers adds them.
inline constexpr const char* kSpecialTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                 "pad_token", "cls_token", "mask_token"};

/// The fields of tokenizer_config.json: of transformers 4 and 5, and of older files. Each class reads some of them.
std::span<const KnownFields> known_tokenizer_fields();

/// The inputs that transformers passes to a model. Its versions have different defaults.
nlohmann::json model_input_names(bool token_types);

/// A special token that a class has by default.
struct NamedToken {
  const char* key;  // "unk_token"
  std::string content;
  bool lstrip = false;
};

/// tokenizer_config.json with the older files beside it, as far as they make ids.
class TokenizerConfig {
 public:
  /// No file.
  TokenizerConfig() = default;
  explicit TokenizerConfig(const std::filesystem::path& folder);

  JsonField root() const { return {config_, file_, ""}; }

  /// The class of transformers that AutoTokenizer makes of the folder. "TokenizersBackend" takes all of tokenizer.json.
  /// "BertTokenizer" takes its vocabulary and added tokens. Others make their own parts of a vocabulary.
  /// @throws c10::ValueError  naming file and key of a class or a model type that mezzo has not.
  std::string tokenizer_class() const;

  /// transformers writes 10^30 for no limit.
  int64_t model_max_length() const;

  /// A named special token, which errors tell the file of.
  JsonField named(const std::string& key) const {
    return JsonField(config_, is_in_map_.contains(key) ? map_file_ : file_, "")[key];
  }

  /// Whether the files name null: then the token does not exist, even if the class has one.
  bool is_dropped(const char* key) const { return config_.contains(key) && config_[key].is_null(); }

  /// A named special token (such as "unk_token"), or nullopt if no file defines it.
  std::optional<AddedToken> named_token(const char* key) const;

  /// The added tokens in the order in which transformers adds them.
  /// @param defaults  of the class, or of a tokenizer.json taken as it is; the files may overrule or drop them.
  /// @param extra     of the class, if the files have no extra special tokens.
  TokenList added_tokens(TokenList from_tokenizer_json,
                         bool as_is,
                         const std::vector<NamedToken>& defaults,
                         const std::vector<AddedToken>& extra = {}) const;

  /// Whether model_input_names has token_type_ids; nullopt without model_input_names.
  std::optional<bool> names_token_types() const;

  /// What tokenizer_config.json, or else the truncation of tokenizer.json, says.
  TruncationSide truncation_side(const JsonField& truncation) const;

 private:
  /// special_tokens_map.json, from before added_tokens_decoder, overrules the config.
  void merge_special_tokens_map();

  TokenList read_decoder() const;

  TokenList read_added_tokens_json() const;

  /// "extra_special_tokens", or, if it is empty, the value of its older name.
  JsonField extra_tokens() const;

  /// The tokens that the files call special, as transformers compares them with added_tokens.json: an object counts in
  /// special_tokens_map.json alone.
  std::set<std::string> special_contents() const;

  void add_named(const std::vector<NamedToken>& defaults, const std::vector<AddedToken>& extra, TokenList& list) const;

  std::filesystem::path folder_;
  std::string file_, map_file_;
  std::set<std::string> is_in_map_;  ///< keys that special_tokens_map.json has set
  std::string model_file_;
  nlohmann::json config_ = nlohmann::json::object();
  nlohmann::json model_config_ = nlohmann::json::object();  ///< config.json
  bool exists_ = false;
};

}  // namespace mezzo::text
