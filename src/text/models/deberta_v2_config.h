#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mezzo/text/models/model_config.h"
#include "text/models/config_fields.h"

namespace mezzo::text {

/// What a `config.json` of model_type "deberta-v2" says, DeBERTa-v3's and mDeBERTa's among them, with the
/// field names and defaults of transformers' DebertaV2Config.
struct DebertaV2Config : ModelConfig {
  DebertaV2Config();

  int64_t embedding_size = 0;       ///< of a row of the embeddings; 0: hidden_size
  std::string hidden_act = "gelu";  ///< gelu, gelu_new, gelu_pytorch_tanh or relu; so is the next
  std::string pooler_hidden_act = "gelu";
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;
  double pooler_dropout = 0;
  double cls_dropout = -1;  ///< below 0 (null in the file): as hidden_dropout_prob
  double layer_norm_eps = 1e-7;
  int64_t type_vocab_size = 0;
  bool position_biased_input = true;  ///< whether there are absolute positions
  bool relative_attention = false;
  std::vector<std::string> pos_att_type;  ///< c2p, p2c: which terms scores have for relative positions
  bool share_att_key = false;             ///< whether these go through the projections of keys and queries
  int64_t max_relative_positions = -1;    ///< below 1: max_position_embeddings
  int64_t position_buckets = -1;          ///< below 1: a distance each
  std::string norm_rel_ebd = "none";      ///< none or layer_norm
  bool legacy = true;                     ///< of another head

  std::string_view model_type() const override { return "deberta-v2"; }
  std::string_view head_prefix() const override { return "classifier"; }
  void set_dropout(double p) override;
  std::string json() const override;

  bool has_term(std::string_view type) const;
  int64_t farthest() const { return max_relative_positions < 1 ? max_position_embeddings : max_relative_positions; }
  int64_t span() const { return position_buckets > 0 ? position_buckets : farthest(); }
};

std::unique_ptr<ModelConfig> read_deberta_v2_config(const ConfigFields& fields);

}  // namespace mezzo::text
