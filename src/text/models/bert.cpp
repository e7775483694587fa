// BERT (Devlin et al. 2018) on packed rows.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "encoder/blocks.h"
#include "kernels/dropout.h"
#include "mezzo/amp/module_scope.h"
#include "mezzo/text/models/bert_config.h"
#include "text/models/checkpointed.h"
#include "text/models/model_families.h"
#include "text/models/modules.h"

// Shapes below: T rows (tokens of all texts), B texts, H hidden size, F
// intermediate size, C labels.

namespace mezzo::text {

using encoder::LayerNormParams;
using encoder::SequenceLayoutPtr;
using kernels::DropoutSite;

namespace {

/// Which dropout of the model draws: one site each for the embeddings, three a
/// layer, one for the classifier.
enum class LayerSite : uint32_t { kAttentionWeights, kAttentionOutput, kOutput };
constexpr uint32_t kEmbeddingSite = 0, kClassifierSite = 1;

DropoutSite site(double p, const DropoutSeed& random, uint32_t index) {
  return {p, {random.seed, random.step, index}, random.step_offset};
}
DropoutSite site(double p, const DropoutSeed& random, int64_t layer, LayerSite where) {
  return site(p, random, 2 + 3 * static_cast<uint32_t>(layer) + static_cast<uint32_t>(where));
}

class BertEmbeddings : public torch::nn::Module {
 public:
  explicit BertEmbeddings(const BertConfig& config)
      : word_(register_module("word_embeddings", std::make_shared<Embedding>(config.vocab_size, config.hidden_size))),
        position_(register_module("position_embeddings",
                                  std::make_shared<Embedding>(config.max_position_embeddings, config.hidden_size))),
        token_type_(register_module("token_type_embeddings",
                                    std::make_shared<Embedding>(config.type_vocab_size, config.hidden_size))),
        norm_(register_module("LayerNorm", std::make_shared<LayerNorm>(config.hidden_size, config.layer_norm_eps))),
        dropout_(config.hidden_dropout_prob) {}

  at::Tensor forward(const PackedBatch& batch, const DropoutSeed& random) const {  // -> [T, H]
    return encoder::embedding_layer_norm(word_->weight, position_->weight, token_type_->weight, batch.input_ids,
                                         batch.positions, batch.token_types, norm_->params(),
                                         site(is_training() ? dropout_ : 0, random, kEmbeddingSite));
  }

 private:
  std::shared_ptr<Embedding> word_, position_, token_type_;
  std::shared_ptr<LayerNorm> norm_;
  double dropout_;
};

class BertSelfAttention : public torch::nn::Module, public SharesInput {
 public:
  explicit BertSelfAttention(const BertConfig& config)
      : query_(register_module("query", std::make_shared<Dense>(config.hidden_size, config.hidden_size))),
        key_(register_module("key", std::make_shared<Dense>(config.hidden_size, config.hidden_size))),
        value_(register_module("value", std::make_shared<Dense>(config.hidden_size, config.hidden_size))),
        num_heads_(config.num_attention_heads),
        dropout_(config.attention_probs_dropout_prob) {}

  std::vector<at::Tensor> weights_of_one_input() const override {
    return {query_->weight, key_->weight, value_->weight};
  }

  Dense& query() const { return *query_; }
  Dense& key() const { return *key_; }
  Dense& value() const { return *value_; }
  int64_t num_heads() const { return num_heads_; }
  double dropout() const { return is_training() ? dropout_ : 0; }

 private:
  std::shared_ptr<Dense> query_, key_, value_;
  int64_t num_heads_;
  double dropout_;
};

/// layer_norm(dropout(dense(x)) + residual): ends both halves of a layer.
class BertOutput : public torch::nn::Module {
 public:
  BertOutput(const BertConfig& config, int64_t in)
      : dense_(register_module("dense", std::make_shared<Dense>(in, config.hidden_size))),
        norm_(register_module("LayerNorm", std::make_shared<LayerNorm>(config.hidden_size, config.layer_norm_eps))),
        dropout_(config.hidden_dropout_prob) {}

  Dense& dense() const { return *dense_; }
  LayerNormParams norm() const { return norm_->params(); }
  double dropout() const { return is_training() ? dropout_ : 0; }

 private:
  std::shared_ptr<Dense> dense_;
  std::shared_ptr<LayerNorm> norm_;
  double dropout_;
};

class BertAttention : public torch::nn::Module {
 public:
  explicit BertAttention(const BertConfig& config)
      : self_(register_module("self", std::make_shared<BertSelfAttention>(config))),
        output_(register_module("output", std::make_shared<BertOutput>(config, config.hidden_size))) {}

  /// @return [B, H] with `only_first_rows`, else [T, H]
  at::Tensor forward(const at::Tensor& x,
                     const SequenceLayoutPtr& layout,
                     const DropoutSeed& random,
                     int64_t layer,
                     bool only_first_rows) const {
    const encoder::AttentionParams params{
        .query = self_->query().params(),
        .key = self_->key().params(),
        .value = self_->value().params(),
        .output = output_->dense().params(),
        .norm = output_->norm(),
        .num_heads = self_->num_heads(),
        .weights_dropout = site(self_->dropout(), random, layer, LayerSite::kAttentionWeights),
        .output_dropout = site(output_->dropout(), random, layer, LayerSite::kAttentionOutput)};
    return only_first_rows ? encoder::first_token_attention_block(x, params, layout)
                           : encoder::attention_block(x, params, layout);
  }

 private:
  std::shared_ptr<BertSelfAttention> self_;
  std::shared_ptr<BertOutput> output_;
};

encoder::Activation parse_activation(const std::string& name) {
  return name == "gelu"   ? encoder::Activation::kGelu
         : name == "relu" ? encoder::Activation::kRelu
                          : encoder::Activation::kGeluTanh;
}

class BertIntermediate : public torch::nn::Module {
 public:
  explicit BertIntermediate(const BertConfig& config)
      : dense_(register_module("dense", std::make_shared<Dense>(config.hidden_size, config.intermediate_size))),
        activation_(parse_activation(config.hidden_act)) {}
  Dense& dense() const { return *dense_; }
  encoder::Activation activation() const { return activation_; }

 private:
  std::shared_ptr<Dense> dense_;
  encoder::Activation activation_;
};

class BertLayer : public torch::nn::Module {
 public:
  explicit BertLayer(const BertConfig& config)
      : attention_(register_module("attention", std::make_shared<BertAttention>(config))),
        intermediate_(register_module("intermediate", std::make_shared<BertIntermediate>(config))),
        output_(register_module("output", std::make_shared<BertOutput>(config, config.intermediate_size))) {}

  /// @param only_first_rows  whether no row but each sequence's first is needed
  /// @return [B, H] with `only_first_rows`, else [T, H]
  at::Tensor forward(const at::Tensor& x,
                     const SequenceLayoutPtr& layout,
                     const DropoutSeed& random,
                     int64_t layer,
                     bool only_first_rows) const {
    const ModuleScope scope("layer", layer);
    const auto attended = attention_->forward(x, layout, random, layer, only_first_rows);
    return encoder::feed_forward_block(attended,
                                       {.intermediate = intermediate_->dense().params(),
                                        .output = output_->dense().params(),
                                        .activation = intermediate_->activation(),
                                        .norm = output_->norm(),
                                        .dropout = site(output_->dropout(), random, layer, LayerSite::kOutput)},
                                       only_first_rows ? layout->first_rows() : at::Tensor());
  }

 private:
  std::shared_ptr<BertAttention> attention_;
  std::shared_ptr<BertIntermediate> intermediate_;
  std::shared_ptr<BertOutput> output_;
};

/// Holds the layers under the names layer.0, layer.1, …
class BertEncoder : public torch::nn::Module {
 public:
  explicit BertEncoder(const BertConfig& config) {
    auto list = register_module("layer", std::make_shared<torch::nn::Module>());
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
      layers_.push_back(list->register_module(std::to_string(i), std::make_shared<BertLayer>(config)));
    }
  }

  /// @param rows  of the last layer
  at::Tensor forward(at::Tensor x, const SequenceLayoutPtr& layout, const DropoutSeed& random, RowsPer rows) const {
    const ModuleScope scope("encoder");
    for (size_t i = 0; i < layers_.size(); ++i) {
      const bool only_first_rows = rows == RowsPer::kText && i + 1 == layers_.size();
      const auto run = [=, layer = layers_[i]](const std::vector<at::Tensor>& inputs) {
        return layer->forward(inputs[0], layout, random, static_cast<int64_t>(i), only_first_rows);
      };
      x = checkpointing_ && is_training() ? checkpointed(run, {x}, layers_[i]->parameters()) : run({x});
    }
    return x;
  }

  void set_gradient_checkpointing(bool on) { checkpointing_ = on; }

 private:
  std::vector<std::shared_ptr<BertLayer>> layers_;
  bool checkpointing_ = false;
};

class BertPooler : public torch::nn::Module {
 public:
  explicit BertPooler(const BertConfig& config)
      : dense_(register_module("dense", std::make_shared<Dense>(config.hidden_size, config.hidden_size))) {}
  at::Tensor forward(const at::Tensor& first_tokens) const {
    const ModuleScope scope("pooler");
    return dense_->forward(first_tokens).tanh();
  }

 private:
  std::shared_ptr<Dense> dense_;
};

class BertModel : public Encoder {
 public:
  /// @param rows  what it is for: where it is for tokens, it has no pooler, as in transformers.
  BertModel(const BertConfig& config, RowsPer rows)
      : embeddings_(register_module("embeddings", std::make_shared<BertEmbeddings>(config))),
        encoder_(register_module("encoder", std::make_shared<BertEncoder>(config))),
        config_(config),
        num_layers_(config.num_hidden_layers),
        head_size_(config.hidden_size / config.num_attention_heads) {
    if (rows == RowsPer::kText) {
      pooler_ = register_module("pooler", std::make_shared<BertPooler>(config));
    }
  }

  at::Tensor forward(const PackedBatch& batch, const DropoutSeed& random, RowsPer rows) override {
    const ModuleScope scope("bert");
    const auto output = encoder_->forward(embeddings_->forward(batch, random), layout_of(batch), random, rows);
    return rows == RowsPer::kText && pooler_ ? pooler_->forward(output) : output;
  }

  bool takes_unknown_lengths(const at::Device& device, at::ScalarType dtype, int64_t max_seqlen) const override {
    return encoder::can_attend_unknown(device, dtype, head_size_, max_seqlen);
  }

  void set_gradient_checkpointing(bool on) override { encoder_->set_gradient_checkpointing(on); }

  int64_t layer_of(std::string_view parameter) const override {
    constexpr std::string_view kLayer = "encoder.layer.";
    if (parameter.starts_with(kLayer)) {
      return 1 + std::stoll(std::string(parameter.substr(kLayer.size())));
    }
    return parameter.starts_with("embeddings.") ? 0 : num_layers_ + 1;
  }

  RowBytes row_bytes(Precision precision) const override {
    const auto hidden = static_cast<double>(config_.hidden_size),
               inner = static_cast<double>(config_.intermediate_size);
    const auto heads = static_cast<double>(config_.num_attention_heads);
    const bool is_float = precision == Precision::kFloat32;
    // A layer: its input, queries, keys, values and context; the first norm, and its output; the inner
    // product; the second norm; and of each head the logarithm of its softmax's sum. In half
    // precision all but the norms and those have two bytes.
    // Work: gradients of the layer's output, of its second half's two inputs, of the inner rows, and
    // the activations once more.
    return {.embeddings = 4 * hidden,
            .layer = is_float ? 4 * (8 * hidden + inner + heads) : 20 * hidden + 2 * inner + 4 * heads,
            .work = is_float ? 4 * (3 * hidden + 2 * inner) : 10 * hidden + 4 * inner};
  }

 private:
  std::shared_ptr<BertEmbeddings> embeddings_;
  std::shared_ptr<BertEncoder> encoder_;
  std::shared_ptr<BertPooler> pooler_;
  BertConfig config_;
  int64_t num_layers_, head_size_;
};

/// transformers' BertForSequenceClassification, or BertForTokenClassification.
class BertForTask : public ModelForTask {
 public:
  BertForTask(const BertConfig& config, const Head& head)
      : ModelForTask(head),
        config_(config),
        bert_(register_module("bert", std::make_shared<BertModel>(config, head.rows))),
        classifier_(register_module("classifier", std::make_shared<Dense>(config.hidden_size, head.num_outputs))) {}

  at::Tensor forward(const PackedBatch& batch, const DropoutSeed& random) override {
    const double p = config_.classifier_dropout < 0 ? config_.hidden_dropout_prob : config_.classifier_dropout;
    const auto rows = bert_->forward(batch, random, head().rows);
    const ModuleScope scope("classifier");
    return classifier_->forward(kernels::dropout(rows, site(is_training() ? p : 0, random, kClassifierSite)));
  }

  const ModelConfig& config() const override { return config_; }
  std::string_view base_model_prefix() const override { return "bert"; }
  Encoder& encoder() override { return *bert_; }
  const Encoder& encoder() const override { return *bert_; }

 private:
  BertConfig config_;
  std::shared_ptr<BertModel> bert_;
  std::shared_ptr<Dense> classifier_;
};

}  // namespace

ModelFamily bert_family() {
  return {.model_type = "bert",
          .read_config = read_bert_config,
          .make_model = [](const ModelConfig& config, const Head& head) -> std::shared_ptr<ModelForTask> {
            return std::make_shared<BertForTask>(dynamic_cast<const BertConfig&>(config), head);
          }};
}

}  // namespace mezzo::text
