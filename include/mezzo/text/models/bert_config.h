#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace mezzo::text {

/// What a Hugging Face `config.json` of model_type "bert" says, with the same
/// field names and defaults as transformers' BertConfig.
struct BertConfig {
  int64_t vocab_size = 30522;
  int64_t hidden_size = 768;
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 12;
  int64_t intermediate_size = 3072;
  std::string hidden_act = "gelu";  ///< gelu, gelu_new, gelu_pytorch_tanh or relu
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;
  double classifier_dropout = -1;  ///< below 0 (null in the file): as hidden_dropout_prob
  int64_t max_position_embeddings = 512;
  int64_t type_vocab_size = 2;
  double initializer_range = 0.02;
  double layer_norm_eps = 1e-12;
  int64_t pad_token_id = 0;
  std::string problem_type = "single_label_classification";
  std::vector<std::string> label_names;  ///< id2label in the order of ids; LABEL_0 and LABEL_1 where a file has none

  /// @throws c10::ValueError  naming the file and the field, for anything but
  ///     a BERT single-label classifier (or bare encoder) this code can run.
  static BertConfig from_file(const std::filesystem::path& config_json);

  /// Whether a classifier can tell its labels apart: two at least, each with a name of its own.
  /// @throws c10::ValueError  naming `config_json`, where they were read, and what is wrong.
  void check_labels(const std::filesystem::path& config_json) const;

  /// Writes a config.json that transformers' BertForSequenceClassification
  /// loads. Atomic: the file is complete or untouched.
  void save(const std::filesystem::path& config_json) const;

  /// Sets all three dropout probabilities.
  void set_dropout(double p);
};

}  // namespace mezzo::text
