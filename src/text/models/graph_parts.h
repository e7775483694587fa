#pragma once

#include <optional>
#include <string>
#include <vector>

#include "encoder/activation.h"
#include "text/models/modules.h"
#include "text/models/onnx_graph.h"

/// What models are made of, as parts of an ONNX graph on padded batches: B texts of S tokens, H hidden size.
namespace mezzo::text {

/// The inputs of a graph, and the values that all layers share.
struct GraphTexts {
  onnx::Graph& graph;
  onnx::Value input_ids;       ///< [B, S] int64
  onnx::Value attention_mask;  ///< [B, S] int64: 0 for padding
  onnx::Value token_type_ids;  ///< [B, S] int64; empty if the model reads none
  onnx::Value positions;       ///< [S] int64: 0, 1, …
};

/// @param begin, count  which of the layer's outputs; by default all
onnx::Value graph_linear(
    onnx::Graph& graph, const Dense& dense, const onnx::Value& x, int64_t begin = 0, int64_t count = -1);
onnx::Value graph_layer_norm(onnx::Graph& graph, const LayerNorm& norm, const onnx::Value& x);
onnx::Value graph_activation(onnx::Graph& graph, encoder::Activation activation, const onnx::Value& x);

/// Which keys each query sees: bool [B, 1, 1 or S, S].
/// @param window  the number of tokens to either side that a token sees; nullopt: all.
onnx::Value graph_seen_keys(const GraphTexts& texts, std::optional<int64_t> window);

/// [B, S, H] as [B, heads, S, head size].
onnx::Value graph_split_heads(onnx::Graph& graph, const onnx::Value& x, int64_t num_heads, int64_t head_size);
/// softmax(scores) value, of the keys that are seen, [B, S, H]. A query that sees none gets the mean of all values.
/// @param scores, value  [B, heads, S, S], and [B, heads, S, head size].
onnx::Value graph_attend(onnx::Graph& graph,
                         const onnx::Value& scores,
                         const onnx::Value& is_seen,
                         const onnx::Value& value,
                         int64_t hidden_size);

/// The mean over each text's tokens, [B, H].
/// @param x  [B, S, H]
onnx::Value graph_mean(const GraphTexts& texts, const onnx::Value& x);

}  // namespace mezzo::text
