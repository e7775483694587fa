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

/// What a `config.json` of model_type "modernbert" says, with the same field names and defaults as
/// transformers' ModernBertConfig.
struct ModernBertConfig : ModelConfig {
  ModernBertConfig();

  std::string hidden_activation = "gelu";  ///< gelu, gelu_new, gelu_pytorch_tanh or relu; so is the next
  std::string classifier_activation = "gelu";
  std::string classifier_pooling = "cls";  ///< cls, or mean over the tokens
  double embedding_dropout = 0;
  double attention_dropout = 0;  ///< of attention weights, and of what attention adds
  double mlp_dropout = 0;
  double classifier_dropout = 0;
  double norm_eps = 1e-5;
  double initializer_cutoff_factor = 2;  ///< where normal distributions end, in standard deviations
  bool norm_bias = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool classifier_bias = false;       ///< of the layer before the classifier
  int64_t local_attention = 128;      ///< width of the window: a token sees half of it to either side
  std::vector<bool> is_local;         ///< of each layer: layer_types, where "sliding_attention" is local
  double global_rope_theta = 160000;  ///< rope_parameters.full_attention.rope_theta
  double local_rope_theta = 10000;

  std::string_view model_type() const override { return "modernbert"; }
  std::string_view head_prefix() const override { return "classifier"; }
  bool takes_token_types() const override { return false; }
  void set_dropout(double p) override;
  std::string json() const override;
};

}  // namespace mezzo::text
