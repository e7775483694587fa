#include "text/models/post_norm_layer.h"

#include <cmath>

#include "encoder/dropout.h"
#include "mezzo/amp/module_scope.h"
#include "text/models/checkpointed.h"
#include "text/models/dropout_sites.h"

// T rows (tokens of all texts), B texts, H hidden size.

namespace mezzo::text {

PostNormLayer::PostNormLayer(const PostNormLayerOptions& options) : options_(options) {
  const auto& names = options.names;
  const int64_t hidden = options.hidden_size, inner = options.intermediate_size;
  const auto dense = [&](std::string_view name, int64_t in, int64_t out) {
    return register_at(*this, name, std::make_shared<Dense>(in, out));
  };
  const auto norm = [&](std::string_view name) {
    return register_at(*this, name, std::make_shared<LayerNorm>(hidden, options.norm_eps));
  };
  query_ = dense(names.query, hidden, hidden);
  key_ = dense(names.key, hidden, hidden);
  value_ = dense(names.value, hidden, hidden);
  const auto of_positions = [&](bool has_term, const std::shared_ptr<Dense>& shared, std::string_view name) {
    return !has_term ? nullptr : options.relative.shares_projections ? shared : dense(name, hidden, hidden);
  };
  position_key_ = of_positions(options.relative.has_key_term, key_, names.position_key);
  position_query_ = of_positions(options.relative.has_query_term, query_, names.position_query);
  attention_output_ = dense(names.attention_output, hidden, hidden);
  attention_norm_ = norm(names.attention_norm);
  intermediate_ = dense(names.intermediate, hidden, inner);
  output_ = dense(names.output, inner, hidden);
  output_norm_ = norm(names.output_norm);
}

at::Tensor PostNormLayer::forward(const at::Tensor& x,
                                  const encoder::SequenceLayoutPtr& layout,
                                  const DropoutSeed& random,
                                  int64_t layer,
                                  bool only_first_rows,
                                  const RelativeRows& relative) const {
  const auto dropout = [&](double p, LayerSite where) {
    return dropout_site(is_training() ? p : 0, random, layer_site(layer, where));
  };
  const encoder::AttentionParams attention{
      .query_key_value = {query_->params(random), key_->params(random), value_->params(random)},
      .output = attention_output_->params(random),
      .norm = attention_norm_->params(),
      .attention = {.num_heads = options_.num_heads,
                    .dropout = dropout(options_.attention_weights_dropout, LayerSite::kAttentionWeights),
                    .only_first_queries = only_first_rows,
                    .relative = positions_of(relative)},
      .output_dropout = dropout(options_.attention_output_dropout, LayerSite::kAttentionOutput)};
  return encoder::feed_forward_block(encoder::attention_block(x, attention, layout),
                                     {.intermediate = intermediate_->params(random),
                                      .output = output_->params(random),
                                      .activation = options_.activation,
                                      .norm = output_norm_->params(),
                                      .dropout = dropout(options_.output_dropout, LayerSite::kOutput)},
                                     only_first_rows ? layout->first_rows() : at::Tensor());
}

encoder::RelativePositions PostNormLayer::positions_of(const RelativeRows& relative) const {
  if (!relative.embeddings.defined()) {
    return {};
  }
  const ModuleScope attention("attention"), self("self");
  const auto needed = relative.embeddings.narrow(0, relative.first, relative.count);
  const auto of = [&](const std::shared_ptr<Dense>& projection) {
    return projection ? projection->forward(needed) : at::Tensor();
  };
  return {of(position_key_), of(position_query_), relative.rows};
}

onnx::Value PostNormLayer::add_to(const GraphTexts& texts, const onnx::Value& x, const LayerGraph& shared) const {
  onnx::Graph& graph = texts.graph;
  const int64_t hidden = options_.hidden_size, head_size = hidden / options_.num_heads;
  const onnx::Value value = graph_split_heads(graph, graph_linear(graph, *value_, x), options_.num_heads, head_size);
  const onnx::Value context = graph_attend(graph, scores_in(graph, x, shared), shared.is_seen, value, hidden);
  const onnx::Value attended =
      graph_layer_norm(graph, *attention_norm_, graph.add(x, graph_linear(graph, *attention_output_, context)));
  const onnx::Value inner = graph_activation(graph, options_.activation, graph_linear(graph, *intermediate_, attended));
  return graph_layer_norm(graph, *output_norm_, graph.add(attended, graph_linear(graph, *output_, inner)));
}

/// Of queries and keys, and of learned relative positions: [B, heads, S, S].
onnx::Value PostNormLayer::scores_in(onnx::Graph& graph, const onnx::Value& x, const LayerGraph& shared) const {
  const int64_t heads = options_.num_heads, head_size = options_.hidden_size / heads;
  const int terms = 1 + (position_key_ ? 1 : 0) + (position_query_ ? 1 : 0);
  const onnx::Value scale = graph.constant(1 / std::sqrt(static_cast<double>(head_size * terms)));
  const onnx::Value query =
      graph.mul(graph_split_heads(graph, graph_linear(graph, *query_, x), heads, head_size), scale);
  const onnx::Value key = graph_split_heads(graph, graph_linear(graph, *key_, x), heads, head_size);
  onnx::Value scores = graph.matmul(query, graph.transpose(key, {0, 1, 3, 2}));
  // The layer's result for the table is always the same: [heads, head size, R].
  const auto positions = [&](const Dense& projection) {
    const at::NoGradGuard no_grad;
    return graph.constant(projection.forward(shared.relative).view({-1, heads, head_size}).permute({1, 2, 0}));
  };
  const auto pick = [&](const onnx::Value& of_rows, const onnx::Value& distances) {
    const onnx::Value shape = graph.node("Shape", {scores});
    return graph.node("GatherElements", {of_rows, graph.node("Expand", {distances, shape})}, {{"axis", int64_t{3}}});
  };
  if (position_key_) scores = graph.add(scores, pick(graph.matmul(query, positions(*position_key_)), shared.distances));
  if (position_query_) {
    const onnx::Value of_keys = graph.matmul(graph.mul(key, scale), positions(*position_query_));
    const onnx::Value picked = pick(of_keys, graph.transpose(shared.distances, {1, 0}));
    scores = graph.add(scores, graph.transpose(picked, {0, 1, 3, 2}));
  }
  return scores;
}

std::vector<at::Tensor> PostNormLayer::weights_of_one_input() const {
  return {query_->weight, key_->weight, value_->weight};
}

PostNormLayers::PostNormLayers(int64_t count, const PostNormLayerOptions& options)
    : relative_dropout_(options.relative.dropout) {
  for (int64_t i = 0; i < count; ++i) {
    layers_.push_back(register_module(std::to_string(i), std::make_shared<PostNormLayer>(options)));
  }
}

at::Tensor PostNormLayers::forward(at::Tensor x,
                                   const encoder::SequenceLayoutPtr& layout,
                                   const DropoutSeed& random,
                                   RowsPer rows,
                                   std::string_view path,
                                   const RelativeRows& relative) const {
  std::vector<at::Tensor> shared;  // by all layers
  if (relative.embeddings.defined()) {
    shared.push_back(relative.embeddings);
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    const bool only_first_rows = rows == RowsPer::kText && i + 1 == layers_.size();
    const auto number = static_cast<int64_t>(i);
    const auto site = dropout_site(is_training() ? relative_dropout_ : 0, random,
                                   relative_site(static_cast<int64_t>(layers_.size()), number));
    const auto run = [=, layer = layers_[i], needed = relative](const std::vector<at::Tensor>& inputs) {
      const ModuleScope scope(path, number);
      RelativeRows dropped = needed;
      if (inputs.size() > 1) {
        // A separate tensor for the layer, so that its gradients are summed before other layers' join them, as when the
        // layer is computed again. All rows: a row's mask must not follow from what other texts need.
        dropped.embeddings = encoder::dropout(inputs[1].alias(), site);
      }
      return layer->forward(inputs[0], layout, random, number, only_first_rows, dropped);
    };
    std::vector<at::Tensor> inputs{x};
    inputs.insert(inputs.end(), shared.begin(), shared.end());
    x = checkpointing_ && is_training() ? checkpointed(run, inputs, layers_[i]->parameters()) : run(inputs);
  }
  return x;
}

onnx::Value PostNormLayers::add_to(const GraphTexts& texts, onnx::Value x, const LayerGraph& shared) const {
  for (const auto& layer : layers_) x = layer->add_to(texts, x, shared);
  return x;
}

}  // namespace mezzo::text
