// RoBERTa (Liu et al. 2019), and XLM-RoBERTa and CamemBERT, which differ in vocabulary alone:
// transformers' RobertaForSequenceClassification and RobertaForTokenClassification, and theirs.
#include <c10/util/Exception.h>

#include "mezzo/text/models/bert_config.h"
#include "text/models/bert_line.h"
#include "text/models/model_families.h"
#include "text/models/post_norm_model.h"

namespace mezzo::text {
namespace {

/// BERT's fields, of which some positions are for padding.
struct RobertaConfig : BertConfig {
  RobertaConfig() { pad_token_id = 1; }

  std::string_view model_type() const override { return model_type_of_file; }
  std::string_view head_prefix() const override { return "classifier.out_proj"; }
  int64_t max_tokens() const override { return max_position_embeddings - pad_token_id - 1; }
  std::string json() const override { return bert_fields(*this, class_name).dump(2); }

  std::string_view model_type_of_file, class_name;
};

std::unique_ptr<ModelConfig> read_roberta_config(const ConfigFields& fields,
                                                 std::string_view model_type,
                                                 std::string_view class_name,
                                                 int64_t vocab_size) {
  auto config = std::make_unique<RobertaConfig>();
  config->model_type_of_file = model_type;
  config->class_name = class_name;
  config->vocab_size = vocab_size;
  read_bert_fields(fields, *config);
  TORCH_CHECK_VALUE(config->max_tokens() >= 2, fields.at("max_position_embeddings"), "is ",
                    config->max_position_embeddings, ", too few for a text: its positions begin at ",
                    config->pad_token_id + 1, ", after pad_token_id");
  return config;
}

std::shared_ptr<ModelForTask> make_roberta(const ModelConfig& config, const Head& head) {
  const auto roberta = std::make_shared<RobertaConfig>(dynamic_cast<const RobertaConfig&>(config));
  auto encoder = bert_encoder(*roberta, "roberta");
  encoder.embeddings.positions_skip_padding = true;
  ClassifierOptions classifier{.dropout = classifier_dropout(*roberta)};
  if (head.rows == RowsPer::kText) {
    classifier.outputs = "classifier.out_proj";
    classifier.dense = "classifier.dense";
    classifier.input_dropout = classifier.dropout;
  }
  return std::make_shared<PostNormModel>(roberta, encoder, classifier, head);
}

}  // namespace

ModelFamily roberta_family() {
  return {.model_type = "roberta",
          .read_config =
              [](const ConfigFields& fields) {
                return read_roberta_config(fields, "roberta", "Roberta", /*vocab_size=*/50265);
              },
          .make_model = make_roberta};
}

ModelFamily xlm_roberta_family() {
  return {.model_type = "xlm-roberta",
          .read_config =
              [](const ConfigFields& fields) {
                return read_roberta_config(fields, "xlm-roberta", "XLMRoberta", /*vocab_size=*/30522);
              },
          .make_model = make_roberta};
}

ModelFamily camembert_family() {
  return {.model_type = "camembert",
          .read_config =
              [](const ConfigFields& fields) {
                return read_roberta_config(fields, "camembert", "Camembert", /*vocab_size=*/30522);
              },
          .make_model = make_roberta};
}

}  // namespace mezzo::text
