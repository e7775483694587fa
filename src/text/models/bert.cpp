// BERT (Devlin et al. 2018): transformers' BertForSequenceClassification and
// BertForTokenClassification.
#include "mezzo/text/models/bert_config.h"
#include "text/models/bert_line.h"
#include "text/models/model_families.h"
#include "text/models/post_norm_model.h"

namespace mezzo::text {
namespace {

std::unique_ptr<ModelConfig> read_bert_config(const ConfigFields& fields) {
  auto config = std::make_unique<BertConfig>();
  read_bert_fields(fields, *config);
  return config;
}

std::shared_ptr<ModelForTask> make_bert(const ModelConfig& config, const Head& head) {
  const auto bert = std::make_shared<BertConfig>(dynamic_cast<const BertConfig&>(config));
  auto encoder = bert_encoder(*bert, "bert");
  encoder.has_pooler = head.rows == RowsPer::kText;
  return std::make_shared<PostNormModel>(bert, encoder, ClassifierOptions{.dropout = classifier_dropout(*bert)}, head);
}

}  // namespace

ModelFamily bert_family() { return {.model_type = "bert", .read_config = read_bert_config, .make_model = make_bert}; }

}  // namespace mezzo::text
