// ELECTRA (Clark et al. 2020): transformers' ElectraForSequenceClassification and
// ElectraForTokenClassification.
#include "mezzo/text/models/bert_config.h"
#include "text/models/bert_line.h"
#include "text/models/model_families.h"
#include "text/models/post_norm_model.h"

namespace mezzo::text {
namespace {

/// BERT's fields, with the defaults of the small model, and a separate width for embeddings.
struct ElectraConfig : BertConfig {
  ElectraConfig() {
    hidden_size = 256;
    num_attention_heads = 4;
    intermediate_size = 1024;
  }
  int64_t embedding_size = 128;

  std::string_view model_type() const override { return "electra"; }
  std::string_view head_prefix() const override { return "classifier.out_proj"; }
  std::string json() const override {
    auto json = bert_fields(*this, "Electra");
    json["embedding_size"] = embedding_size;
    return json.dump(2);
  }
};

std::unique_ptr<ModelConfig> read_electra_config(const ConfigFields& fields) {
  auto config = std::make_unique<ElectraConfig>();
  fields.read("embedding_size", config->embedding_size, 1);
  read_bert_fields(fields, *config);
  return config;
}

std::shared_ptr<ModelForTask> make_electra(const ModelConfig& config, const Head& head) {
  const auto electra = std::make_shared<ElectraConfig>(dynamic_cast<const ElectraConfig&>(config));
  auto encoder = bert_encoder(*electra, "electra");
  encoder.embeddings.size = electra->embedding_size;
  ClassifierOptions classifier{.dropout = classifier_dropout(*electra)};
  if (head.rows == RowsPer::kText) {
    classifier.outputs = "classifier.out_proj";
    classifier.dense = "classifier.dense";
    classifier.activation = encoder::Activation::kGelu;
    classifier.input_dropout = classifier.dropout;
  }
  return std::make_shared<PostNormModel>(electra, encoder, classifier, head);
}

}  // namespace

ModelFamily electra_family() {
  return {.model_type = "electra", .read_config = read_electra_config, .make_model = make_electra};
}

}  // namespace mezzo::text
