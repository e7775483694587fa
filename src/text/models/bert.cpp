#include "mezzo/text/models/bert.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "encoder/blocks.h"
#include "encoder/sequence_layout.h"
#include "kernels/dropout.h"
#include "mezzo/amp/module_scope.h"
#include "text/models/checkpointed.h"

// Shapes below: T rows (tokens of all texts), B texts, H hidden size, F intermediate size, C labels.

namespace mezzo::text {

using kernels::DropoutSite;
using kernels::LayerNormParams;
using kernels::RandomKey;
using kernels::SequenceLayoutPtr;

/// y = x weight^T + bias.
class Dense : public torch::nn::Module {
 public:
  Dense(int64_t in, int64_t out)
      : weight(register_parameter("weight", at::empty({out, in}))),
        bias(register_parameter("bias", at::empty({out}))) {}
  at::Tensor forward(const at::Tensor& x) const { return at::linear(x, weight, bias); }

  /// Keeps a copy of the weight in `dtype` from now on, which an optimizer may refresh when it updates the weight.
  at::Tensor make_shadow(at::ScalarType dtype) {
    shadow_ = weight.detach().to(dtype);
    lead_ = lead();
    return shadow_;
  }

  kernels::LinearParams params() {
    if (shadow_.defined() && lead() != lead_) {  // the weight changed, and its shadow did not
      shadow_.copy_(weight.detach());
      lead_ = lead();
    }
    return {weight, bias, shadow_};
  }

  at::Tensor weight, bias;

 private:
  /// By how many changes the weight is ahead. What updates both in step leaves it as it is.
  int64_t lead() const { return static_cast<int64_t>(weight._version()) - static_cast<int64_t>(shadow_._version()); }

  at::Tensor shadow_;
  int64_t lead_ = 0;
};

namespace {

class Embedding : public torch::nn::Module {
 public:
  Embedding(int64_t rows, int64_t columns) : weight(register_parameter("weight", at::empty({rows, columns}))) {}
  at::Tensor weight;
};

class LayerNorm : public torch::nn::Module {
 public:
  LayerNorm(int64_t size, double eps)
      : weight_(register_parameter("weight", at::empty({size}))),
        bias_(register_parameter("bias", at::empty({size}))),
        eps_(eps) {}
  LayerNormParams params() const { return {weight_, bias_, eps_}; }

 private:
  at::Tensor weight_, bias_;
  double eps_;
};

/// Which dropout of the model draws: one site each for the embeddings, three a layer, one for the classifier.
enum class LayerSite : uint32_t { kAttentionWeights, kAttentionOutput, kOutput };
constexpr uint32_t kEmbeddingSite = 0, kClassifierSite = 1;

RandomKey site(const DropoutSeed& random, uint32_t index) { return {random.seed, random.step, index}; }
RandomKey site(const DropoutSeed& random, int64_t layer, LayerSite where) {
  return site(random, 2 + 3 * static_cast<uint32_t>(layer) + static_cast<uint32_t>(where));
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
    const DropoutSite dropout{is_training() ? dropout_ : 0, site(random, kEmbeddingSite)};
    return kernels::embedding_layer_norm(word_->weight, position_->weight, token_type_->weight, batch.input_ids,
                                         batch.positions, /*token_types=*/{}, norm_->params(), dropout);
  }

 private:
  std::shared_ptr<Embedding> word_, position_, token_type_;
  std::shared_ptr<LayerNorm> norm_;
  double dropout_;
};

class BertSelfAttention : public torch::nn::Module {
 public:
  explicit BertSelfAttention(const BertConfig& config)
      : query_(register_module("query", std::make_shared<Dense>(config.hidden_size, config.hidden_size))),
        key_(register_module("key", std::make_shared<Dense>(config.hidden_size, config.hidden_size))),
        value_(register_module("value", std::make_shared<Dense>(config.hidden_size, config.hidden_size))),
        num_heads_(config.num_attention_heads),
        dropout_(config.attention_probs_dropout_prob) {}

  Dense& query() const { return *query_; }
  Dense& key() const { return *key_; }
  Dense& value() const { return *value_; }
  int64_t num_heads() const { return num_heads_; }
  DropoutSite dropout(const RandomKey& random) const { return {is_training() ? dropout_ : 0, random}; }

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
  DropoutSite dropout(const RandomKey& random) const { return {is_training() ? dropout_ : 0, random}; }

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
    const kernels::AttentionParams params{
        .query = self_->query().params(),
        .key = self_->key().params(),
        .value = self_->value().params(),
        .output = output_->dense().params(),
        .norm = output_->norm(),
        .num_heads = self_->num_heads(),
        .weights_dropout = self_->dropout(site(random, layer, LayerSite::kAttentionWeights)),
        .output_dropout = output_->dropout(site(random, layer, LayerSite::kAttentionOutput))};
    return only_first_rows ? kernels::first_token_attention_block(x, params, layout)
                           : kernels::attention_block(x, params, layout);
  }

 private:
  std::shared_ptr<BertSelfAttention> self_;
  std::shared_ptr<BertOutput> output_;
};

kernels::Activation parse_activation(const std::string& name) {
  return name == "gelu"   ? kernels::Activation::kGelu
         : name == "relu" ? kernels::Activation::kRelu
                          : kernels::Activation::kGeluTanh;
}

class BertIntermediate : public torch::nn::Module {
 public:
  explicit BertIntermediate(const BertConfig& config)
      : dense_(register_module("dense", std::make_shared<Dense>(config.hidden_size, config.intermediate_size))),
        activation_(parse_activation(config.hidden_act)) {}
  Dense& dense() const { return *dense_; }
  kernels::Activation activation() const { return activation_; }

 private:
  std::shared_ptr<Dense> dense_;
  kernels::Activation activation_;
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
    return kernels::feed_forward_block(attended,
                                       {.intermediate = intermediate_->dense().params(),
                                        .output = output_->dense().params(),
                                        .activation = intermediate_->activation(),
                                        .norm = output_->norm(),
                                        .dropout = output_->dropout(site(random, layer, LayerSite::kOutput))},
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

  /// @return [B, H]: the last layer's first row of each sequence
  at::Tensor forward(at::Tensor x, const SequenceLayoutPtr& layout, const DropoutSeed& random) const {
    const ModuleScope scope("encoder");
    for (size_t i = 0; i < layers_.size(); ++i) {
      const auto run = [=, this, layer = layers_[i]](const std::vector<at::Tensor>& inputs) {
        return layer->forward(inputs[0], layout, random, static_cast<int64_t>(i),
                              /*only_first_rows=*/i + 1 == layers_.size());
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

}  // namespace

class BertModel : public torch::nn::Module {
 public:
  explicit BertModel(const BertConfig& config)
      : embeddings_(register_module("embeddings", std::make_shared<BertEmbeddings>(config))),
        encoder_(register_module("encoder", std::make_shared<BertEncoder>(config))),
        pooler_(register_module("pooler", std::make_shared<BertPooler>(config))) {}

  at::Tensor forward(const PackedBatch& batch, const DropoutSeed& random) const {  // -> [B, H]
    const ModuleScope scope("bert");
    const auto layout = c10::make_intrusive<kernels::SequenceLayout>(batch.cu_seqlens, batch.seqlens,
                                                                     batch.input_ids.size(0), batch.input_ids.device());
    return pooler_->forward(encoder_->forward(embeddings_->forward(batch, random), layout, random));
  }

  void set_gradient_checkpointing(bool on) { encoder_->set_gradient_checkpointing(on); }

 private:
  std::shared_ptr<BertEmbeddings> embeddings_;
  std::shared_ptr<BertEncoder> encoder_;
  std::shared_ptr<BertPooler> pooler_;
};

BertForSequenceClassification::BertForSequenceClassification(const BertConfig& config) : config_(config) {
  TORCH_CHECK_VALUE(num_labels() >= 2, "BertForSequenceClassification: needs at least two labels, got ", num_labels());
  bert_ = register_module("bert", std::make_shared<BertModel>(config));
  classifier_ = register_module("classifier", std::make_shared<Dense>(config.hidden_size, num_labels()));
}

void BertForSequenceClassification::init_weights(uint64_t seed,
                                                 const std::function<bool(const std::string& name)>& select) {
  at::NoGradGuard no_grad;
  for (auto& item : named_parameters()) {
    const std::string& name = item.key();
    at::Tensor& parameter = item.value();
    if (!select(name)) {
      continue;
    }
    if (name.ends_with("bias")) {
      parameter.zero_();
    } else if (name.ends_with("LayerNorm.weight")) {
      parameter.fill_(1);
    } else {
      auto generator = at::detail::createCPUGenerator(XXH3_64bits_withSeed(name.data(), name.size(), seed));
      parameter.normal_(0, config_.initializer_range, generator);
      if (name.ends_with("word_embeddings.weight")) {
        parameter.select(0, config_.pad_token_id).zero_();
      }
    }
  }
}

void BertForSequenceClassification::init_weights(uint64_t seed) {
  init_weights(seed, [](const std::string&) { return true; });
}

void BertForSequenceClassification::set_gradient_checkpointing(bool on) { bert_->set_gradient_checkpointing(on); }

std::map<std::string, at::Tensor> BertForSequenceClassification::make_shadows(at::ScalarType dtype) {
  TORCH_CHECK_VALUE(dtype == at::kHalf || dtype == at::kBFloat16,
                    "make_shadows: dtype must be kHalf or kBFloat16, got ", dtype);
  std::map<std::string, at::Tensor> shadows;
  for (const auto& item : named_modules()) {
    auto* dense = item.value()->as<Dense>();
    if (dense != nullptr && item.key().find("encoder.layer.") != std::string::npos) {
      shadows[item.key() + ".weight"] = dense->make_shadow(dtype);
    }
  }
  return shadows;
}

at::Tensor BertForSequenceClassification::forward(const PackedBatch& batch, const DropoutSeed& random) {
  const double p = config_.classifier_dropout < 0 ? config_.hidden_dropout_prob : config_.classifier_dropout;
  const auto pooled = bert_->forward(batch, random);
  const ModuleScope scope("classifier");
  return classifier_->forward(kernels::dropout(pooled, is_training() ? p : 0, site(random, kClassifierSite)));
}

}  // namespace mezzo::text
