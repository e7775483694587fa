// DistilBERT (Sanh et al. 2019): transformers' DistilBertForSequenceClassification and
// DistilBertForTokenClassification.
#include <c10/util/Exception.h>

#include <cmath>

#include "text/models/activation_names.h"
#include "text/models/model_families.h"
#include "text/models/post_norm_model.h"

namespace mezzo::text {
namespace {

constexpr SizeNames kDistilBertSizes{.hidden_size = "dim",
                                     .num_hidden_layers = "n_layers",
                                     .num_attention_heads = "n_heads",
                                     .intermediate_size = "hidden_dim"};

/// A `config.json` of model_type "distilbert", with the defaults of transformers' DistilBertConfig.
struct DistilBertConfig : ModelConfig {
  DistilBertConfig() { num_hidden_layers = 6; }

  std::string activation = "gelu";
  double dropout = 0.1;
  double attention_dropout = 0.1;
  double seq_classif_dropout = 0.2;
  bool sinusoidal_pos_embds = false;  ///< whether new weights have sines for positions

  std::string_view model_type() const override { return "distilbert"; }
  std::string_view head_prefix() const override { return "classifier"; }
  bool takes_token_types() const override { return false; }
  void set_dropout(double p) override;
  std::string json() const override;
};

std::unique_ptr<ModelConfig> read_distilbert_config(const ConfigFields& fields) {
  auto config = std::make_unique<DistilBertConfig>();
  fields.read_one_of("activation", config->activation, activation_names());
  fields.read_number("dropout", config->dropout, 1);
  fields.read_number("attention_dropout", config->attention_dropout, 1);
  fields.read_number("seq_classif_dropout", config->seq_classif_dropout, 1);
  fields.read_flag("sinusoidal_pos_embds", config->sinusoidal_pos_embds);
  // Under their usual names transformers takes sizes, too, and rather than under its own.
  SizeNames sizes = kDistilBertSizes;
  const SizeNames usual;
  for (const auto size : {&SizeNames::hidden_size, &SizeNames::num_hidden_layers, &SizeNames::num_attention_heads}) {
    if (fields.json(usual.*size) != nullptr) {
      sizes.*size = usual.*size;
    }
  }
  fields.read_common(*config, sizes);
  return config;
}

std::string DistilBertConfig::json() const {
  nlohmann::ordered_json json = {
      {"architectures", {architecture("DistilBert", problem_type)}},
      {"model_type", "distilbert"},
      {"vocab_size", vocab_size},
      {kDistilBertSizes.hidden_size, hidden_size},
      {kDistilBertSizes.num_hidden_layers, num_hidden_layers},
      {kDistilBertSizes.num_attention_heads, num_attention_heads},
      {kDistilBertSizes.intermediate_size, intermediate_size},
      {"activation", activation},
      {"dropout", dropout},
      {"attention_dropout", attention_dropout},
      {"seq_classif_dropout", seq_classif_dropout},
      {"max_position_embeddings", max_position_embeddings},
      {"sinusoidal_pos_embds", sinusoidal_pos_embds},
      {"initializer_range", initializer_range},
      {"pad_token_id", pad_token_id},
      {"problem_type", problem_type_field(problem_type)},
      {"dtype", "float32"},
  };
  add_common_fields(json, *this);
  return json.dump(2);
}

void DistilBertConfig::set_dropout(double p) {
  TORCH_CHECK_VALUE(p >= 0 && p < 1, "dropout must be in [0, 1), got ", p);
  dropout = attention_dropout = seq_classif_dropout = p;
}

/// Of position p, columns 2 i and 2 i + 1: sine and cosine of p / 10000^(2 i / columns) (Vaswani et al. 2017).
void fill_with_sinusoids(at::Tensor& table) {
  const int64_t columns = table.size(1);
  auto values = table.accessor<float, 2>();
  for (int64_t position = 0; position < table.size(0); ++position) {
    for (int64_t column = 0; column < columns; ++column) {
      const double exponent = static_cast<double>(column / 2 * 2) / static_cast<double>(columns);
      const double angle = static_cast<double>(position) / std::pow(10000.0, exponent);
      values[position][column] = static_cast<float>(column % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
  }
}

class DistilBertModel : public PostNormModel {
 public:
  DistilBertModel(const std::shared_ptr<const DistilBertConfig>& config,
                  const PostNormEncoderOptions& encoder,
                  const ClassifierOptions& classifier,
                  const Head& head)
      : PostNormModel(config, encoder, classifier, head), has_sinusoids_(config->sinusoidal_pos_embds) {}

 protected:
  void init_parameter(const std::string& name, at::Tensor& parameter, const at::Generator& generator) override {
    PostNormModel::init_parameter(name, parameter, generator);
    if (has_sinusoids_ && name.ends_with("position_embeddings.weight")) {
      fill_with_sinusoids(parameter);
    }
  }

 private:
  bool has_sinusoids_;
};

PostNormEncoderOptions distilbert_encoder(const DistilBertConfig& config) {
  constexpr double kNormEps = 1e-12;
  return {.name = "distilbert",
          .layers_path = "transformer.layer",
          .embeddings = {.vocab_size = config.vocab_size,
                         .size = config.hidden_size,
                         .num_positions = config.max_position_embeddings,
                         .pad_token_id = config.pad_token_id,
                         .norm_eps = kNormEps,
                         .dropout = config.dropout},
          .layer = {.names = {.query = "attention.q_lin",
                              .key = "attention.k_lin",
                              .value = "attention.v_lin",
                              .attention_output = "attention.out_lin",
                              .attention_norm = "sa_layer_norm",
                              .intermediate = "ffn.lin1",
                              .output = "ffn.lin2",
                              .output_norm = "output_layer_norm"},
                    .hidden_size = config.hidden_size,
                    .intermediate_size = config.intermediate_size,
                    .num_heads = config.num_attention_heads,
                    .activation = parse_activation(config.activation),
                    .norm_eps = kNormEps,
                    .attention_weights_dropout = config.attention_dropout,
                    .output_dropout = config.dropout},
          .num_layers = config.num_hidden_layers};
}

std::shared_ptr<ModelForTask> make_distilbert(const ModelConfig& config, const Head& head) {
  const auto distilbert = std::make_shared<DistilBertConfig>(dynamic_cast<const DistilBertConfig&>(config));
  ClassifierOptions classifier{.dropout = distilbert->dropout};
  if (head.rows == RowsPer::kText) {
    classifier.dense = "pre_classifier";
    classifier.activation = encoder::Activation::kRelu;
    classifier.dropout = distilbert->seq_classif_dropout;
  }
  return std::make_shared<DistilBertModel>(distilbert, distilbert_encoder(*distilbert), classifier, head);
}

}  // namespace

ModelFamily distilbert_family() {
  return {.model_type = "distilbert", .read_config = read_distilbert_config, .make_model = make_distilbert};
}

}  // namespace mezzo::text
