// DeBERTa-v2, -v3 and mDeBERTa (He et al. 2021): transformers' DebertaV2ForSequenceClassification and
// DebertaV2ForTokenClassification.
#include "text/models/activation_names.h"
#include "text/models/deberta_v2_config.h"
#include "text/models/model_families.h"
#include "text/models/post_norm_model.h"

namespace mezzo::text {
namespace {

constexpr PostNormLayerNames kDebertaV2LayerNames{.query = "attention.self.query_proj",
                                                  .key = "attention.self.key_proj",
                                                  .value = "attention.self.value_proj",
                                                  .attention_output = "attention.output.dense",
                                                  .attention_norm = "attention.output.LayerNorm",
                                                  .intermediate = "intermediate.dense",
                                                  .output = "output.dense",
                                                  .output_norm = "output.LayerNorm",
                                                  .position_key = "attention.self.pos_key_proj",
                                                  .position_query = "attention.self.pos_query_proj"};

PostNormEncoderOptions deberta_v2_encoder(const DebertaV2Config& config) {
  const int64_t embedding_size = config.embedding_size > 0 ? config.embedding_size : config.hidden_size;
  PostNormEncoderOptions encoder{
      .name = "deberta",
      .layers_path = "encoder.layer",
      .embeddings = {.vocab_size = config.vocab_size,
                     .size = embedding_size,
                     .projected_size = embedding_size == config.hidden_size ? 0 : config.hidden_size,
                     .num_positions = config.position_biased_input ? config.max_position_embeddings : 0,
                     .num_token_types = config.type_vocab_size,
                     .pad_token_id = config.pad_token_id,
                     .norm_eps = config.layer_norm_eps,
                     .dropout = config.hidden_dropout_prob},
      .layer = {.names = kDebertaV2LayerNames,
                .hidden_size = config.hidden_size,
                .intermediate_size = config.intermediate_size,
                .num_heads = config.num_attention_heads,
                .activation = parse_activation(config.hidden_act),
                .norm_eps = config.layer_norm_eps,
                .attention_weights_dropout = config.attention_probs_dropout_prob,
                .attention_output_dropout = config.hidden_dropout_prob,
                .output_dropout = config.hidden_dropout_prob,
                .relative = {.has_key_term = config.has_term("c2p"),
                             .has_query_term = config.has_term("p2c"),
                             .shares_projections = config.share_att_key,
                             .dropout = config.hidden_dropout_prob}},
      .num_layers = config.num_hidden_layers};
  if (config.relative_attention) {
    encoder.relative_path = "encoder";
    encoder.relative = {
        .span = config.span(),
        .rows = rows_of_distances(config.max_tokens(), config.span(), config.position_buckets, config.farthest()),
        .has_norm = config.norm_rel_ebd == "layer_norm",
        .norm_eps = config.layer_norm_eps};
  }
  return encoder;
}

std::shared_ptr<ModelForTask> make_deberta_v2(const ModelConfig& config, const Head& head) {
  const auto deberta = std::make_shared<DebertaV2Config>(dynamic_cast<const DebertaV2Config&>(config));
  ClassifierOptions classifier{.dropout = deberta->hidden_dropout_prob};
  if (head.rows == RowsPer::kText) {
    classifier.dense = "pooler.dense";
    classifier.activation = parse_activation(deberta->pooler_hidden_act);
    classifier.input_dropout = deberta->pooler_dropout;
    classifier.dropout = deberta->cls_dropout < 0 ? deberta->hidden_dropout_prob : deberta->cls_dropout;
  }
  return std::make_shared<PostNormModel>(deberta, deberta_v2_encoder(*deberta), classifier, head);
}

}  // namespace

ModelFamily deberta_v2_family() {
  return {.model_type = "deberta-v2", .read_config = read_deberta_v2_config, .make_model = make_deberta_v2};
}

}  // namespace mezzo::text
