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

/// What a Hugging Face `config.json` says that every model family has, with BERT's
/// field names and defaults.
struct ModelConfig {
  int64_t vocab_size = 30522;
  int64_t hidden_size = 768;
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 12;
  int64_t intermediate_size = 3072;
  int64_t max_position_embeddings = 512;
  double initializer_range = 0.02;
  int64_t pad_token_id = 0;
  std::string first_architecture;  ///< the first of architectures; empty where a file has none
  std::string problem_type = "single_label_classification";  ///< without one in a file, regression for one output
  std::vector<std::string> label_names;  ///< id2label in the order of ids; LABEL_0, LABEL_1, … where a file has none
  /// Of a model that reads long texts in windows: what their outputs are pooled by, "mean" or "max", and how many
  /// tokens two overlap by; empty where texts are cut.
  std::string window_pooling;
  int64_t window_stride = 0;
  /// Whether the model was trained on pairs of texts; nullopt if its file does not say.
  std::optional<bool> reads_pairs;
  /// bos_token_id, eos_token_id and their like, by name, in JSON, as the file has them: save() hands them on.
  std::map<std::string, std::string> other_token_ids;

  virtual ~ModelConfig() = default;

  /// Reads the config of the family that its `model_type` names. A file with `hidden_size` and without
  /// `model_type` is of "bert", as Google's are.
  /// @throws c10::ValueError  naming the file and the field, for anything that mezzo does not run.
  static std::unique_ptr<ModelConfig> from_file(const std::filesystem::path& config_json);

  /// As config.json spells it: "bert".
  virtual std::string_view model_type() const = 0;

  /// What begins the names of the parameters that a label each has a row of, in a classifier of
  /// texts as transformers writes it: "classifier", "classifier.out_proj".
  virtual std::string_view head_prefix() const = 0;

  /// Most tokens of a text, [CLS] and [SEP] included.
  virtual int64_t max_tokens() const { return max_position_embeddings; }

  /// Whether transformers' model takes token_type_ids, for Tokenizer::save().
  virtual bool takes_token_types() const { return true; }

  /// Sets the probabilities of all dropouts.
  /// @throws c10::ValueError  for one that is not in [0, 1).
  virtual void set_dropout(double p) = 0;

  /// The fields that decide what the model computes, by name: a run goes on with the same alone.
  std::map<std::string, std::string> values() const;

  /// The text of a config.json that transformers loads.
  virtual std::string json() const = 0;
  /// Writes json(). Atomic: the file is complete or untouched.
  void save(const std::filesystem::path& config_json) const;

  /// Whether the labels fit the problem type: each with a name of its own, two at least of single labels, one of
  /// regression.
  /// @throws c10::ValueError  naming `config_json`, where they were read, and what is wrong.
  void check_labels(const std::filesystem::path& config_json) const;
};

}  // namespace mezzo::text
