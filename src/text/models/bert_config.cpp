#include "mezzo/text/models/bert_config.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "mezzo/text/io/atomic_file.h"
#include "text/models/model_families.h"

namespace mezzo::text {

std::unique_ptr<ModelConfig> read_bert_config(const ConfigFields& fields) {
  std::string positions = "absolute";
  fields.read_one_of("position_embedding_type", positions, {"absolute"});

  BertConfig config;
  fields.read("type_vocab_size", config.type_vocab_size, 1);
  fields.read_one_of("hidden_act", config.hidden_act, {"gelu", "gelu_new", "gelu_pytorch_tanh", "relu"});
  fields.read_number("hidden_dropout_prob", config.hidden_dropout_prob, 1);
  fields.read_number("attention_probs_dropout_prob", config.attention_probs_dropout_prob, 1);
  fields.read_number("classifier_dropout", config.classifier_dropout, 1);
  fields.read_number("layer_norm_eps", config.layer_norm_eps, 1);
  fields.read_common(config);
  return std::make_unique<BertConfig>(std::move(config));
}

void BertConfig::save(const std::filesystem::path& config_json) const {
  using Json = nlohmann::ordered_json;
  Json json = {
      {"architectures", {architecture("Bert", problem_type)}},
      {"model_type", "bert"},
      {"vocab_size", vocab_size},
      {"hidden_size", hidden_size},
      {"num_hidden_layers", num_hidden_layers},
      {"num_attention_heads", num_attention_heads},
      {"intermediate_size", intermediate_size},
      {"hidden_act", hidden_act},
      {"hidden_dropout_prob", hidden_dropout_prob},
      {"attention_probs_dropout_prob", attention_probs_dropout_prob},
      {"classifier_dropout", classifier_dropout < 0 ? Json() : Json(classifier_dropout)},
      {"max_position_embeddings", max_position_embeddings},
      {"type_vocab_size", type_vocab_size},
      {"initializer_range", initializer_range},
      {"layer_norm_eps", layer_norm_eps},
      {"pad_token_id", pad_token_id},
      {"position_embedding_type", "absolute"},
      {"problem_type", problem_type},
      {"dtype", "float32"},
  };
  add_label_names(json, label_names);
  write_file_atomically(config_json, json.dump(2) + "\n");
}

/// initializer_range is left out: weights have been drawn when a run goes on.
std::map<std::string, std::string> BertConfig::values() const {
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  return {{"attention_probs_dropout_prob", text(attention_probs_dropout_prob)},
          {"classifier_dropout", classifier_dropout < 0 ? "null" : text(classifier_dropout)},
          {"hidden_act", hidden_act},
          {"hidden_dropout_prob", text(hidden_dropout_prob)},
          {"hidden_size", text(hidden_size)},
          {"intermediate_size", text(intermediate_size)},
          {"layer_norm_eps", text(layer_norm_eps)},
          {"max_position_embeddings", text(max_position_embeddings)},
          {"num_attention_heads", text(num_attention_heads)},
          {"num_hidden_layers", text(num_hidden_layers)},
          {"pad_token_id", text(pad_token_id)},
          {"type_vocab_size", text(type_vocab_size)},
          {"vocab_size", text(vocab_size)}};
}

void BertConfig::set_dropout(double p) {
  TORCH_CHECK_VALUE(p >= 0 && p < 1, "dropout must be in [0, 1), got ", p);
  hidden_dropout_prob = attention_probs_dropout_prob = classifier_dropout = p;
}

}  // namespace mezzo::text
