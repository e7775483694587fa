#pragma once

#include "mezzo/cpp20.h"

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "mezzo/text/models/model_config.h"

namespace mezzo::text {

/// The `config.json` of model_type "bert", with the field names and defaults of transformers'
/// BertConfig.
struct BertConfig : ModelConfig {
  std::string hidden_act = "gelu";            ///< gelu, gelu_new, gelu_pytorch_tanh or relu
  double hidden_dropout_prob = 0.1;           ///< of embeddings and layers
  double attention_probs_dropout_prob = 0.1;  ///< of attention weights
  double classifier_dropout = -1;             ///< below 0 (null in the file): as hidden_dropout_prob
  int64_t type_vocab_size = 2;                ///< number of token types
  double layer_norm_eps = 1e-12;              ///< added to the variance

  std::string_view model_type() const override { return "bert"; }
  std::string_view head_prefix() const override { return "classifier"; }
  /// With one type, the ids of a pair would be outside its table.
  bool takes_token_types() const override { return type_vocab_size > 1; }
  void set_dropout(double p) override;
  std::string json() const override;
};

}  // namespace mezzo::text
