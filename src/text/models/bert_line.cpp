#include "text/models/bert_line.h"

#include "text/models/activation_names.h"

namespace mezzo::text {

void read_bert_fields(const ConfigFields& fields, BertConfig& config) {
  fields.read("type_vocab_size", config.type_vocab_size, 1);
  fields.read_one_of("hidden_act", config.hidden_act, activation_names());
  fields.read_number("hidden_dropout_prob", config.hidden_dropout_prob, 1);
  fields.read_number("attention_probs_dropout_prob", config.attention_probs_dropout_prob, 1);
  fields.read_number("classifier_dropout", config.classifier_dropout, 1);
  fields.read_number("layer_norm_eps", config.layer_norm_eps, 1);
  fields.read_common(config);
}

nlohmann::ordered_json bert_fields(const BertConfig& config, std::string_view class_name) {
  using Json = nlohmann::ordered_json;
  const double dropout = config.classifier_dropout;
  Json json = {
      {"architectures", {architecture(class_name, config.problem_type)}},
      {"model_type", config.model_type()},
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"intermediate_size", config.intermediate_size},
      {"hidden_act", config.hidden_act},
      {"hidden_dropout_prob", config.hidden_dropout_prob},
      {"attention_probs_dropout_prob", config.attention_probs_dropout_prob},
      {"classifier_dropout", dropout < 0 ? Json() : Json(dropout)},
      {"max_position_embeddings", config.max_position_embeddings},
      {"type_vocab_size", config.type_vocab_size},
      {"initializer_range", config.initializer_range},
      {"layer_norm_eps", config.layer_norm_eps},
      {"pad_token_id", config.pad_token_id},
      {"position_embedding_type", "absolute"},
      {"problem_type", problem_type_field(config.problem_type)},
      {"dtype", "float32"},
  };
  add_common_fields(json, config);
  return json;
}

double classifier_dropout(const BertConfig& config) {
  return config.classifier_dropout < 0 ? config.hidden_dropout_prob : config.classifier_dropout;
}

PostNormEncoderOptions bert_encoder(const BertConfig& config, std::string_view name) {
  return {.name = name,
          .layers_path = "encoder.layer",
          .embeddings = {.vocab_size = config.vocab_size,
                         .size = config.hidden_size,
                         .num_positions = config.max_position_embeddings,
                         .num_token_types = config.type_vocab_size,
                         .pad_token_id = config.pad_token_id,
                         .norm_eps = config.layer_norm_eps,
                         .dropout = config.hidden_dropout_prob},
          .layer = {.hidden_size = config.hidden_size,
                    .intermediate_size = config.intermediate_size,
                    .num_heads = config.num_attention_heads,
                    .activation = parse_activation(config.hidden_act),
                    .norm_eps = config.layer_norm_eps,
                    .attention_weights_dropout = config.attention_probs_dropout_prob,
                    .attention_output_dropout = config.hidden_dropout_prob,
                    .output_dropout = config.hidden_dropout_prob},
          .num_layers = config.num_hidden_layers};
}

}  // namespace mezzo::text
