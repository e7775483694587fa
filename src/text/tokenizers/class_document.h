#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizers/added_tokens.h"
#include "text/tokenizers/json_field.h"
#include "text/tokenizers/pipeline_tokenizer.h"
#include "text/tokenizers/tokenizer_config.h"

namespace mezzo::text {

/// The tokens that a class of transformers has by default.
struct ClassDefaults {
  std::vector<NamedToken> tokens;
  std::vector<AddedToken> extra;
};

/// @param name  what TokenizerConfig::tokenizer_class says, except TokenizersBackend.
ClassDefaults defaults_of(const std::string& name);

/// The contents of a folder's files: a tokenizer.json, or the parts of it that older files tell.
struct GivenFiles {
  std::string source;  // the file of the vocabulary, for messages
  nlohmann::json document = nlohmann::json::object();
  TokenList added = {};
  std::vector<NamedToken> named = {};                           // special tokens of a model of no class
  std::optional<std::vector<AddedToken>> extra = std::nullopt;  // instead of the class's
  bool is_sentencepiece = false;
  int32_t unk_id = -1;  // -1: they do not tell

  JsonField normalizer() const { return JsonField(document, source, "")["normalizer"]; }
};

/// Makes the tokenizer.json of a class of transformers from the given files, by the settings of tokenizer_config.json.
class ClassDocument {
 public:
  ClassDocument(const std::string& name, const TokenizerConfig& config, std::vector<NamedToken> tokens)
      : name_(name), files_(&config), config_(config.root()), tokens_(std::move(tokens)) {}

  /// Of the document that is given counts "model" with vocab and merges, and the charsmap of "normalizer".
  /// @throws c10::ValueError  naming file and key of a value that does not fit the class.
  nlohmann::json make(GivenFiles& given) const;

  /// "post_processor", by the ids that tokens have got.
  nlohmann::json post_processor(const PipelineSpec::FindId& find) const;

 private:
  /// @throws c10::ValueError  naming file and key, if the files say that such a token does not
  ///     exist.
  std::string token(const char* key) const;
  nlohmann::json in_fairseq_order(nlohmann::json pieces) const;
  nlohmann::json roberta(nlohmann::json& given) const;
  void check_special_tokens(const GivenFiles& given) const;
  nlohmann::json bert(GivenFiles& given) const;
  nlohmann::json xlm_roberta(GivenFiles& given) const;
  nlohmann::json deberta(GivenFiles& given) const;

  std::string name_;
  const TokenizerConfig* files_;
  JsonField config_;
  std::vector<NamedToken> tokens_;
};

/// "post_processor" for settings that say whether texts begin with a bos_token and end with an eos_token:
/// "add_bos_token", "add_eos_token".
nlohmann::json post_processor_of_settings(const JsonField& config,
                                          const std::vector<NamedToken>& tokens,
                                          const PipelineSpec::FindId& find);

}  // namespace mezzo::text
