#include "mezzo/text/models/bert_config.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "text/models/bert_line.h"

namespace mezzo::text {

void BertConfig::save(const std::filesystem::path& config_json) const {
  write_config(config_json, bert_fields(*this, "Bert"));
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
          {"model_type", std::string(model_type())},
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
