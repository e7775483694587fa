#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/models/model_config.h"

namespace mezzo::text {

/// The `config.json` of model_type "modernbert", with the field names and defaults of transformers'
/// ModernBertConfig.
struct ModernBertConfig : ModelConfig {
  ModernBertConfig();

  std::string hidden_activation = "gelu";      ///< gelu, gelu_new, gelu_pytorch_tanh or relu
  std::string classifier_activation = "gelu";  ///< gelu, gelu_new, gelu_pytorch_tanh or relu
  std::string classifier_pooling = "cls";      ///< cls, or mean over the tokens
  double embedding_dropout = 0;                ///< of the embeddings
  double attention_dropout = 0;                ///< of attention weights, and of the output of attention
  double mlp_dropout = 0;                      ///< of the feed-forward layers
  double classifier_dropout = 0;               ///< before the last layer
  double norm_eps = 1e-5;                      ///< added to the variance
  double initializer_cutoff_factor = 2;        ///< truncates normal distributions, in standard deviations
  bool norm_bias = false;                      ///< whether norms have a bias
  bool attention_bias = false;                 ///< whether attention's linear layers have a bias
  bool mlp_bias = false;                       ///< whether feed-forward layers have a bias
  bool classifier_bias = false;                ///< of the layer before the classifier
  int64_t local_attention = 128;               ///< width of the window: half of it on each side of a token
  std::vector<bool> is_local;                  ///< of each layer: "sliding_attention" in layer_types
  double global_rope_theta = 160000;           ///< rope_parameters.full_attention.rope_theta
  double local_rope_theta = 10000;             ///< rope_parameters.sliding_attention.rope_theta

  std::string_view model_type() const override { return "modernbert"; }
  std::string_view head_prefix() const override { return "classifier"; }
  bool takes_token_types() const override { return false; }
  void set_dropout(double p) override;
  std::string json() const override;
};

}  // namespace mezzo::text
