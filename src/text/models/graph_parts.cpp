#include "text/models/graph_parts.h"

#include <cmath>
#include <numbers>

namespace mezzo::text {

using onnx::Graph;
using onnx::Value;

Value graph_linear(Graph& graph, const Dense& dense, const Value& x, int64_t begin, int64_t count) {
  const auto part = [&](const at::Tensor& of_all) { return count < 0 ? of_all : of_all.narrow(0, begin, count); };
  const Value product = graph.matmul(x, graph.constant(part(dense.weight).t()));
  return dense.bias.defined() ? graph.add(product, graph.constant(part(dense.bias))) : product;
}

Value graph_layer_norm(Graph& graph, const LayerNorm& norm, const Value& x) {
  const encoder::LayerNormParams params = norm.params();
  std::vector<Value> inputs{x, graph.constant(params.weight)};
  if (params.bias.defined()) inputs.push_back(graph.constant(params.bias));
  return graph.node("LayerNormalization", inputs, {{"axis", int64_t{-1}}, {"epsilon", params.eps}});
}

Value graph_activation(Graph& graph, encoder::Activation activation, const Value& x) {
  using encoder::Activation;
  if (activation == Activation::kRelu) return graph.node("Relu", {x});
  Value inner;
  if (activation == Activation::kGelu) {
    inner = graph.node("Erf", {graph.node("Div", {x, graph.constant(std::numbers::sqrt2)})});
  } else {
    const Value cube = graph.mul(graph.mul(x, x), x);
    const Value sum = graph.add(x, graph.mul(cube, graph.constant(0.044715)));
    inner = graph.node("Tanh", {graph.mul(sum, graph.constant(std::sqrt(2 / std::numbers::pi)))});
  }
  return graph.mul(graph.mul(x, graph.add(inner, graph.constant(1.0))), graph.constant(0.5));
}

Value graph_seen_keys(const GraphTexts& texts, std::optional<int64_t> window) {
  Graph& graph = texts.graph;
  Value is_seen = graph.unsqueeze(graph.cast(texts.attention_mask, at::kBool), {1, 2});  // [B, 1, 1, S]
  if (window) {
    const Value distance =
        graph.node("Abs", {graph.sub(graph.unsqueeze(texts.positions, {1}), graph.unsqueeze(texts.positions, {0}))});
    is_seen = graph.node("And", {is_seen, graph.node("LessOrEqual", {distance, graph.integer(*window)})});
  }
  return is_seen;
}

Value graph_split_heads(Graph& graph, const Value& x, int64_t num_heads, int64_t head_size) {
  return graph.transpose(graph.reshape(x, {0, 0, num_heads, head_size}), {0, 2, 1, 3});
}

Value graph_attend(Graph& graph, const Value& scores, const Value& is_seen, const Value& value, int64_t hidden_size) {
  // In place of a sum with the lowest number, which in float16 may be infinite.
  const Value seen = graph.node("Where", {is_seen, scores, graph.lowest()});
  const Value weights = graph.node("Softmax", {seen}, {{"axis", int64_t{-1}}});
  return graph.reshape(graph.transpose(graph.matmul(weights, value), {0, 2, 1, 3}), {0, 0, hidden_size});
}

Value graph_mean(const GraphTexts& texts, const Value& x) {
  Graph& graph = texts.graph;
  const Value is_token = graph.cast(graph.unsqueeze(texts.attention_mask, {2}), at::kFloat);  // [B, S, 1]
  const auto sum = [&](const Value& rows) {  // in float32: float16 ends at 65504
    return graph.node("ReduceSum", {rows, graph.constant(std::vector<int64_t>{1})}, {{"keepdims", int64_t{0}}});
  };
  const Value rows = graph.mul(graph.cast(x, at::kFloat), is_token);
  return graph.cast(graph.node("Div", {sum(rows), sum(is_token)}), graph.dtype());
}

}  // namespace mezzo::text
