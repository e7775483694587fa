#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mezzo/text/tokenizers/tokenizer.h"
#include "text/tokenizers/added_tokens.h"
#include "text/tokenizers/normalizer.h"
#include "text/tokenizers/post_processor.h"
#include "text/tokenizers/pre_tokenizer.h"
#include "text/tokenizers/token_model.h"

namespace mezzo::text {

/// All that makes a tokenizer of parts.
struct PipelineSpec {
  using FindId = std::function<int32_t(const std::string&)>;

  std::string source;                    // the file of the vocabulary, for messages
  nlohmann::json document;               // as tokenizer.json has it
  std::vector<AddedToken> added_tokens;  // in the order of addition; an id is -1 if the file has none
  // If a class makes its own: "post_processor" of the document, by the ids that tokens have got.
  std::function<nlohmann::json(const FindId&)> post_processor;
  nlohmann::json config;        // what tokenizer_config.json is to say: names of special tokens, model_max_length, ...
  bool has_token_types = true;  // false: all are 0
};

/// A tokenizer as tokenizer.json describes it. Added tokens are found, the rest is normalized and split into words. A
/// model turns each word into ids; special tokens come around them.
class PipelineTokenizer : public Tokenizer {
 public:
  /// @throws c10::ValueError  naming file and key of an unknown or contradictory value.
  explicit PipelineTokenizer(PipelineSpec spec);

  Encoding encode(std::string_view text, int64_t max_length = 0) const override;
  Encoding encode(std::string_view text, std::string_view pair, int64_t max_length = 0) const override;
  std::vector<Encoding> encode_windows(std::string_view text, int64_t max_length, int64_t stride) const override;
  Encoding encode_words(std::span<const std::string> words, int64_t max_length = 0) const override;
  std::vector<std::string> split_words(std::string_view text) const override;
  int64_t vocab_size() const override { return int64_t{tokens_.back().second} + 1; }
  int64_t model_max_length() const override { return model_max_length_; }
  int32_t pad_id() const override { return pad_id_; }
  const std::string& token(int32_t id) const override;
  void save(const std::filesystem::path& folder, const TokenizerSaveOptions& options = {}) const override;

 private:
  class ModelSink;
  void append_ids(std::string_view text,
                  const PreTokenizerSequence& pre_tokenizer,
                  size_t limit,
                  std::vector<int32_t>& ids) const;

  std::string source_;
  nlohmann::json document_, config_;  // without vocabulary and added tokens
  NormalizerSequence normalizer_;
  PreTokenizerSequence pre_tokenizer_, words_pre_tokenizer_;  // the latter for encode_words()
  std::optional<BertNormalizer> bert_;  // normalizes and splits in one pass, if the parts are BERT's
  std::unique_ptr<const TokenModel> model_;
  std::vector<std::pair<std::string, int32_t>> tokens_;  // vocabulary and added tokens, ascending by id
  AddedVocabulary added_;
  PostProcessor post_processor_;
  bool has_token_types_;
  TruncationSide truncation_side_ = TruncationSide::kRight;
  int64_t model_max_length_ = 0;
  int32_t pad_id_ = -1;
};

}  // namespace mezzo::text
