#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mezzo::text {

/// The fields of a Hugging Face `config.json` that every model family has, with BERT's field names
/// and defaults.
struct ModelConfig {
  int64_t vocab_size = 30522;                                ///< number of token ids
  int64_t hidden_size = 768;                                 ///< width of a token's row, H
  int64_t num_hidden_layers = 12;                            ///< number of layers
  int64_t num_attention_heads = 12;                          ///< attention heads per layer
  int64_t intermediate_size = 3072;                          ///< width of the feed-forward layer
  int64_t max_position_embeddings = 512;                     ///< number of positions
  double initializer_range = 0.02;                           ///< standard deviation of new weights
  int64_t pad_token_id = 0;                                  ///< token id of padding
  std::string first_architecture;                            ///< the first of architectures; empty if a file has none
  std::string problem_type = "single_label_classification";  ///< if a file has none: regression for one output
  std::vector<std::string> label_names;  ///< id2label in the order of ids; LABEL_0, LABEL_1, … if a file has none
  /// For a model that reads long texts in windows: the pooling of their outputs, "mean" or "max".
  /// Empty if texts are truncated.
  std::string window_pooling;
  int64_t window_stride = 0;  ///< number of tokens by which two windows overlap
  /// Whether the model was trained on pairs of texts; nullopt if its file does not say.
  std::optional<bool> reads_pairs;
  /// bos_token_id, eos_token_id and similar ids, by name, as JSON from the file. save() writes them
  /// again.
  std::map<std::string, std::string> other_token_ids;

  virtual ~ModelConfig() = default;

  /// Reads the config of the family in `model_type`. A file with `hidden_size` and without
  /// `model_type` is of "bert", as Google's files are.
  /// @throws c10::ValueError  naming the file and the field, for anything that mezzo does not
  ///     support
  static std::unique_ptr<ModelConfig> from_file(const std::filesystem::path& config_json);

  /// The family in the spelling of config.json: "bert".
  virtual std::string_view model_type() const = 0;

  /// The prefix of the parameters with one row per label, in transformers' classifier of texts:
  /// "classifier", "classifier.out_proj".
  virtual std::string_view head_prefix() const = 0;

  /// The maximum number of tokens of a text, including [CLS] and [SEP].
  virtual int64_t max_tokens() const { return max_position_embeddings; }

  /// Whether transformers' model accepts token_type_ids, for Tokenizer::save().
  virtual bool takes_token_types() const { return true; }

  /// Sets the probabilities of all dropouts.
  /// @throws c10::ValueError  for a probability outside [0, 1)
  virtual void set_dropout(double p) = 0;

  /// The fields that determine the model's computation, by name. A run can only be resumed with
  /// equal values.
  std::map<std::string, std::string> values() const;

  /// The text of a config.json that transformers loads.
  virtual std::string json() const = 0;
  /// Writes json(). Atomic: the file is complete or unchanged.
  void save(const std::filesystem::path& config_json) const;

  /// Checks that the labels fit the problem type. All names differ; single labels need two names,
  /// regression needs one.
  /// @throws c10::ValueError  naming `config_json`, their source, and the error
  void check_labels(const std::filesystem::path& config_json) const;
};

}  // namespace mezzo::text
