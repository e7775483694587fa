// ModernBERT (Warner et al. 2024) on packed rows.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <numbers>

#include "encoder/blocks.h"
#include "encoder/dropout.h"
#include "encoder/reference/parts.h"
#include "mezzo/amp/module_scope.h"
#include "mezzo/text/models/modernbert_config.h"
#include "text/models/activation_names.h"
#include "text/models/checkpointed.h"
#include "text/models/dropout_sites.h"
#include "text/models/graph_parts.h"
#include "text/models/lora.h"
#include "text/models/model_families.h"
#include "text/models/modules.h"
#include "text/models/pooling.h"

// Shapes below: T rows (tokens of all texts), B texts, H hidden size, F
// intermediate size, C labels.

namespace mezzo::text {
namespace {

using encoder::SequenceLayoutPtr;

std::shared_ptr<LayerNorm> norm_of(const ModernBertConfig& config) {
  return std::make_shared<LayerNorm>(config.hidden_size, config.norm_eps, config.norm_bias);
}

class ModernBertEmbeddings : public torch::nn::Module {
 public:
  explicit ModernBertEmbeddings(const ModernBertConfig& config)
      : table_(register_module("tok_embeddings", std::make_shared<Embedding>(config.vocab_size, config.hidden_size))),
        norm_(register_module("norm", norm_of(config))),
        dropout_(config.embedding_dropout) {}

  at::Tensor forward(const PackedBatch& batch, const DropoutSeed& random) const {  // -> [T, H]
    const ModuleScope scope("embeddings");
    const auto rows = norm_->forward(at::embedding(table_->weight, batch.input_ids));
    return encoder::dropout(rows, dropout_site(is_training() ? dropout_ : 0, random, kEmbeddingSite));
  }

  onnx::Value add_to(const GraphTexts& texts) const {  // [B, S, H]
    return graph_layer_norm(texts.graph, *norm_,
                            texts.graph.gather(texts.graph.constant(table_->weight), texts.input_ids, 0));
  }

 private:
  std::shared_ptr<Embedding> table_;
  std::shared_ptr<LayerNorm> norm_;
  double dropout_;
};

class ModernBertAttention : public torch::nn::Module {
 public:
  explicit ModernBertAttention(const ModernBertConfig& config)
      : query_key_value(register_module(
            "Wqkv", std::make_shared<Dense>(config.hidden_size, 3 * config.hidden_size, config.attention_bias))),
        output(register_module(
            "Wo", std::make_shared<Dense>(config.hidden_size, config.hidden_size, config.attention_bias))) {}
  std::shared_ptr<Dense> query_key_value, output;
};

class ModernBertMLP : public torch::nn::Module {
 public:
  explicit ModernBertMLP(const ModernBertConfig& config)
      : intermediate(register_module(
            "Wi", std::make_shared<Dense>(config.hidden_size, 2 * config.intermediate_size, config.mlp_bias))),
        output(register_module(
            "Wo", std::make_shared<Dense>(config.intermediate_size, config.hidden_size, config.mlp_bias))) {}
  std::shared_ptr<Dense> intermediate, output;
};

/// Cosines and sines of the places of a graph's tokens, [S, head size / 2] each.
struct RotaryGraph {
  onnx::Value cosines, sines;
  int64_t half = 0;  ///< columns

  RotaryGraph(const GraphTexts& texts, const at::Tensor& table) : half(table.size(1) / 2) {
    const auto rows = [&](const at::Tensor& part) {
      return texts.graph.gather(texts.graph.constant(part), texts.positions, 0);
    };
    cosines = rows(table.narrow(1, 0, half));
    sines = rows(table.narrow(1, half, half));
  }

  /// @param x  [B, heads, S, head size]
  onnx::Value turn(onnx::Graph& graph, const onnx::Value& x) const {
    const auto columns = [&](int64_t begin, int64_t end) {
      return graph.node("Slice", {x, graph.constant(std::vector{begin}), graph.constant(std::vector{end}),
                                  graph.constant(std::vector{int64_t{3}})});
    };
    const onnx::Value left = columns(0, half), right = columns(half, 2 * half);
    const onnx::Value turned_left = graph.sub(graph.mul(left, cosines), graph.mul(right, sines));
    const onnx::Value turned_right = graph.add(graph.mul(right, cosines), graph.mul(left, sines));
    return graph.node("Concat", {turned_left, turned_right}, {{"axis", int64_t{3}}});
  }
};

class ModernBertLayer : public torch::nn::Module {
 public:
  ModernBertLayer(const ModernBertConfig& config, int64_t number)
      : attention_norm_(number > 0 ? register_module("attn_norm", norm_of(config)) : nullptr),
        attention_(register_module("attn", std::make_shared<ModernBertAttention>(config))),
        mlp_norm_(register_module("mlp_norm", norm_of(config))),
        mlp_(register_module("mlp", std::make_shared<ModernBertMLP>(config))),
        activation_(parse_activation(config.hidden_activation)),
        num_heads_(config.num_attention_heads),
        number_(number),
        attention_dropout_(config.attention_dropout),
        mlp_dropout_(config.mlp_dropout) {}

  /// @param attention  options that the model knows
  /// @return [B, H] with only_first_queries, else [T, H]
  at::Tensor forward(const at::Tensor& x,
                     const SequenceLayoutPtr& layout,
                     encoder::AttentionDescription attention,
                     const DropoutSeed& random) const {
    static const at::Tensor none;
    const ModuleScope scope("layers", number_);
    const auto site = [&](double p, LayerSite where) {
      return dropout_site(is_training() ? p : 0, random, layer_site(number_, where));
    };
    attention.num_heads = num_heads_;
    attention.dropout = site(attention_dropout_, LayerSite::kAttentionWeights);
    const auto attended = encoder::attention_block(
        x,
        {.query_key_value = {attention_->query_key_value->params(random)},
         .output = attention_->output->params(random),
         .norm = attention_norm_ ? attention_norm_->params() : encoder::LayerNormParams{none, none, 0},
         .attention = attention,
         .output_dropout = site(attention_dropout_, LayerSite::kAttentionOutput),
         .norm_first = true},
        layout);
    return encoder::feed_forward_block(attended,
                                       {.intermediate = mlp_->intermediate->params(random),
                                        .output = mlp_->output->params(random),
                                        .activation = activation_,
                                        .norm = mlp_norm_->params(),
                                        .dropout = site(0, LayerSite::kOutput),
                                        .norm_first = true,
                                        .is_gated = true,
                                        .inner_dropout = site(mlp_dropout_, LayerSite::kOutput)},
                                       attention.only_first_queries ? layout->first_rows() : at::Tensor());
  }

  /// @param is_seen, rotary  of this layer's kind of attention.
  onnx::Value add_to(const GraphTexts& texts,
                     const onnx::Value& x,
                     const onnx::Value& is_seen,
                     const RotaryGraph& rotary) const {
    onnx::Graph& graph = texts.graph;
    const Dense& all = *attention_->query_key_value;
    const int64_t hidden = all.weight.size(1), head_size = hidden / num_heads_;
    const onnx::Value normed = attention_norm_ ? graph_layer_norm(graph, *attention_norm_, x) : x;
    const auto heads = [&](int64_t part) {
      return graph_split_heads(graph, graph_linear(graph, all, normed, part * hidden, hidden), num_heads_, head_size);
    };
    const onnx::Value query =
        graph.mul(rotary.turn(graph, heads(0)), graph.constant(1 / std::sqrt(static_cast<double>(head_size))));
    const onnx::Value scores = graph.matmul(query, graph.transpose(rotary.turn(graph, heads(1)), {0, 1, 3, 2}));
    const onnx::Value context = graph_attend(graph, scores, is_seen, heads(2), hidden);
    const onnx::Value attended = graph.add(x, graph_linear(graph, *attention_->output, context));
    const onnx::Value inner = graph_layer_norm(graph, *mlp_norm_, attended);
    const int64_t width = mlp_->output->weight.size(1);
    const auto half = [&](int64_t part) {
      return graph_linear(graph, *mlp_->intermediate, inner, part * width, width);
    };
    const onnx::Value gated = graph.mul(graph_activation(graph, activation_, half(0)), half(1));
    return graph.add(attended, graph_linear(graph, *mlp_->output, gated));
  }

 private:
  std::shared_ptr<LayerNorm> attention_norm_;
  std::shared_ptr<ModernBertAttention> attention_;
  std::shared_ptr<LayerNorm> mlp_norm_;
  std::shared_ptr<ModernBertMLP> mlp_;
  encoder::Activation activation_;
  int64_t num_heads_, number_;
  double attention_dropout_, mlp_dropout_;
};

class ModernBertModel : public Encoder {
 public:
  explicit ModernBertModel(const ModernBertConfig& config)
      : config_(config),
        embeddings_(register_module("embeddings", std::make_shared<ModernBertEmbeddings>(config))),
        final_norm_(register_module("final_norm", norm_of(config))) {
    auto list = register_module("layers", std::make_shared<torch::nn::Module>());
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
      layers_.push_back(list->register_module(std::to_string(i), std::make_shared<ModernBertLayer>(config, i)));
    }
    const auto table = [&](const char* name, double theta) {  // moves with the parameters, and is not saved
      return register_buffer(name, encoder::rotary_table(config.max_position_embeddings,
                                                         config.hidden_size / config.num_attention_heads, theta));
    };
    global_rotary_ = table("global_rotary", config.global_rope_theta);
    local_rotary_ = table("local_rotary", config.local_rope_theta);
  }

  at::Tensor forward(const PackedBatch& batch, const DropoutSeed& random, RowsPer rows) override {
    const ModuleScope scope("model");
    const auto layout = layout_of(batch);
    TORCH_CHECK_INDEX(layout->longest() <= config_.max_position_embeddings, "a text of ", layout->longest(),
                      " tokens is longer than the model's ", config_.max_position_embeddings);
    auto x = embeddings_->forward(batch, random);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const bool is_local = config_.is_local[i];
      encoder::AttentionDescription attention;
      if (is_local) attention.window = config_.local_attention / 2;
      attention.only_first_queries = rows == RowsPer::kText && i + 1 == layers_.size();
      attention.rotary = is_local ? local_rotary_ : global_rotary_;
      const auto run = [=, layer = layers_[i]](const std::vector<at::Tensor>& inputs) {
        return layer->forward(inputs[0], layout, attention, random);
      };
      x = checkpointing_ && is_training() ? checkpointed(run, {x}, layers_[i]->parameters()) : run({x});
    }
    return final_norm_->forward(x);
  }

  std::string add_to(const GraphTexts& texts, RowsPer rows) const override {
    const RotaryGraph global(texts, global_rotary_), local(texts, local_rotary_);
    const onnx::Value global_keys = graph_seen_keys(texts, std::nullopt),
                      local_keys = graph_seen_keys(texts, config_.local_attention / 2);
    onnx::Value x = embeddings_->add_to(texts);
    for (size_t i = 0; i < layers_.size(); ++i) {
      x = config_.is_local[i] ? layers_[i]->add_to(texts, x, local_keys, local)
                              : layers_[i]->add_to(texts, x, global_keys, global);
    }
    x = graph_layer_norm(texts.graph, *final_norm_, x);
    return rows == RowsPer::kText ? texts.graph.gather(x, texts.graph.integer(0), 1) : x;
  }

  /// Not where lengths are rounded up beyond the rotary tables.
  bool takes_unknown_lengths(const at::Device& device, at::ScalarType dtype, int64_t max_seqlen) const override {
    return max_seqlen <= config_.max_position_embeddings &&
           encoder::can_attend_unknown(device, dtype, config_.hidden_size / config_.num_attention_heads,
                                       /*has_relative=*/false);
  }

  void set_gradient_checkpointing(bool on) override { checkpointing_ = on; }

  int64_t layer_of(std::string_view parameter) const override {
    constexpr std::string_view kLayer = "layers.";
    if (parameter.starts_with(kLayer)) {
      return 1 + std::stoll(std::string(parameter.substr(kLayer.size())));
    }
    return parameter.starts_with("embeddings.") ? 0 : config_.num_hidden_layers + 1;
  }

  RowBytes row_bytes(Precision precision, int64_t /*longest*/) const override {
    const auto hidden = static_cast<double>(config_.hidden_size),
               inner = static_cast<double>(config_.intermediate_size);
    const auto heads = static_cast<double>(config_.num_attention_heads);
    const double width = precision == Precision::kFloat32 ? 4 : 2;
    // A layer: the float32 inputs of its halves; query, key, value and context; the rows before activation and of their
    // gate. Also, of each head, the logarithm of its softmax's sum.
    const double layer = 8 * hidden + width * (4 * hidden + 2 * inner) + 4 * heads;
    // Words, normalised; and the values of all rows that the last layer, or the mean, keeps.
    const double embeddings = 8 * hidden + (config_.classifier_pooling == "mean" ? layer : (4 + 2 * width) * hidden);
    // Gradients of the layer's output and input; the normalised rows, the product's input and its
    // gradient; gradients of the inner rows, and the activated ones.
    const double work = 12 * hidden + width * (2 * hidden + 3 * inner);
    return {.embeddings = embeddings, .layer = layer, .work = work};
  }

 private:
  ModernBertConfig config_;
  std::shared_ptr<ModernBertEmbeddings> embeddings_;
  std::shared_ptr<LayerNorm> final_norm_;
  std::vector<std::shared_ptr<ModernBertLayer>> layers_;
  at::Tensor global_rotary_, local_rotary_;
  bool checkpointing_ = false;
};

/// The layers before the classifier.
class ModernBertPredictionHead : public torch::nn::Module {
 public:
  explicit ModernBertPredictionHead(const ModernBertConfig& config)
      : dense_(register_module(
            "dense", std::make_shared<Dense>(config.hidden_size, config.hidden_size, config.classifier_bias))),
        norm_(register_module("norm", norm_of(config))),
        activation_(parse_activation(config.classifier_activation)) {}

  at::Tensor forward(const at::Tensor& rows) const {
    const ModuleScope scope("head");
    return norm_->forward(encoder::reference::activate(dense_->forward(rows), activation_));
  }

  onnx::Value add_to(onnx::Graph& graph, const onnx::Value& rows) const {
    return graph_layer_norm(graph, *norm_, graph_activation(graph, activation_, graph_linear(graph, *dense_, rows)));
  }

 private:
  std::shared_ptr<Dense> dense_;
  std::shared_ptr<LayerNorm> norm_;
  encoder::Activation activation_;
};

/// transformers' ModernBertForSequenceClassification, or ModernBertForTokenClassification.
class ModernBertForTask : public ModelForTask {
 public:
  ModernBertForTask(const ModernBertConfig& config, const Head& head)
      : ModelForTask(head),
        config_(config),
        model_(register_module("model", std::make_shared<ModernBertModel>(config))),
        head_(register_module("head", std::make_shared<ModernBertPredictionHead>(config))),
        classifier_(register_module("classifier", std::make_shared<Dense>(config.hidden_size, head.num_outputs))) {}

  at::Tensor forward(const PackedBatch& batch, const DropoutSeed& random) override {
    const bool takes_mean = head().rows == RowsPer::kText && config_.classifier_pooling == "mean";
    auto rows = model_->forward(batch, random, takes_mean ? RowsPer::kToken : head().rows);
    if (takes_mean) {
      rows = mean_of_sequences(rows, *layout_of(batch));
    }
    rows = head_->forward(rows);
    const ModuleScope scope("classifier");
    const double p = is_training() ? config_.classifier_dropout : 0;
    return classifier_->forward(encoder::dropout(rows, dropout_site(p, random, kClassifierSite)));
  }

  std::string add_to(const GraphTexts& texts) const override {
    const bool takes_mean = head().rows == RowsPer::kText && config_.classifier_pooling == "mean";
    onnx::Value rows = model_->add_to(texts, takes_mean ? RowsPer::kToken : head().rows);
    if (takes_mean) rows = graph_mean(texts, rows);
    return graph_linear(texts.graph, *classifier_, head_->add_to(texts.graph, rows));
  }

  const ModelConfig& config() const override { return config_; }
  std::string_view base_model_prefix() const override { return "model"; }
  Encoder& encoder() override { return *model_; }
  const Encoder& encoder() const override { return *model_; }

 protected:
  /// Truncated normal distributions, narrower for layers whose outputs are added to the residual rows.
  void init_parameter(const std::string& name, at::Tensor& parameter, const at::Generator& generator) override {
    if (is_lora(name)) return ModelForTask::init_parameter(name, parameter, generator);
    if (name.ends_with("bias") || parameter.dim() == 1) {
      parameter.fill_(name.ends_with("bias") ? 0 : 1);
      return;
    }
    const auto layers = static_cast<double>(config_.num_hidden_layers);
    const bool is_output = name.ends_with(".Wo.weight") || name == "head.dense.weight";
    const double std = name == "classifier.weight" ? 1 / std::sqrt(static_cast<double>(config_.hidden_size))
                       : is_output                 ? config_.initializer_range / std::sqrt(2 * layers)
                                                   : config_.initializer_range;
    const double cutoff = config_.initializer_cutoff_factor, bound = std::erf(cutoff / std::numbers::sqrt2);
    parameter.uniform_(-bound, bound, generator).erfinv_().mul_(std * std::numbers::sqrt2);
    parameter.clamp_(-cutoff * std, cutoff * std);  // the ends of the interval are infinitely far
  }

 private:
  ModernBertConfig config_;
  std::shared_ptr<ModernBertModel> model_;
  std::shared_ptr<ModernBertPredictionHead> head_;
  std::shared_ptr<Dense> classifier_;
};

}  // namespace

ModelFamily modernbert_family() {
  return {.model_type = "modernbert",
          .read_config = read_modernbert_config,
          .make_model = [](const ModelConfig& config, const Head& head) -> std::shared_ptr<ModelForTask> {
            return std::make_shared<ModernBertForTask>(dynamic_cast<const ModernBertConfig&>(config), head);
          }};
}

}  // namespace mezzo::text
