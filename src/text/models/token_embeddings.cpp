#include "text/models/token_embeddings.h"

#include <ATen/ATen.h>

#include "encoder/blocks.h"
#include "encoder/dropout.h"
#include "mezzo/amp/module_scope.h"
#include "text/models/dropout_sites.h"

// T rows (tokens of all texts).

namespace mezzo::text {

TokenEmbeddings::TokenEmbeddings(const TokenEmbeddingsOptions& options) : options_(options) {
  const auto table = [&](const char* name, int64_t rows) {
    return register_module(name, std::make_shared<Embedding>(rows, options.size));
  };
  word_ = table("word_embeddings", options.vocab_size);
  if (options.num_positions > 0) {
    position_ = table("position_embeddings", options.num_positions);
  }
  if (options.num_token_types > 0) {
    token_type_ = table("token_type_embeddings", options.num_token_types);
  }
  if (options.projected_size > 0) {
    projection_ = register_module("embed_proj",
                                  std::make_shared<Dense>(options.size, options.projected_size, /*has_bias=*/false));
  }
  norm_ = register_module(
      "LayerNorm", std::make_shared<LayerNorm>(projection_ ? options.projected_size : options.size, options.norm_eps));
}

at::Tensor TokenEmbeddings::forward(const PackedBatch& batch, const DropoutSeed& random) const {
  const auto dropout = dropout_site(is_training() ? options_.dropout : 0, random, kEmbeddingSite);
  if (projection_) {
    const ModuleScope scope("embeddings");
    return encoder::dropout(norm_->forward(projection_->forward(sum(batch))), dropout);
  }
  const auto& word = word_->weight;
  const auto none = position_ && token_type_ ? at::Tensor() : word.detach().new_zeros({1, options_.size});
  const auto position = position_ ? position_->weight : none, token_type = token_type_ ? token_type_->weight : none;
  return encoder::embedding_layer_norm(word, position, token_type, batch.input_ids, positions_of(batch),
                                       types_of(batch), norm_->params(), dropout);
}

/// [T, size]
at::Tensor TokenEmbeddings::sum(const PackedBatch& batch) const {
  auto rows = at::embedding(word_->weight, batch.input_ids);
  if (position_) {
    rows = rows + at::embedding(position_->weight, positions_of(batch));
  }
  if (token_type_) {
    const auto types = types_of(batch);
    const auto& table = token_type_->weight;
    rows = rows + (types.defined() ? at::embedding(table, types) : table.select(0, 0));
  }
  return rows;
}

/// Undefined where all are 0: what tokenizers say of pairs tells nothing where all tokens are of one type.
at::Tensor TokenEmbeddings::types_of(const PackedBatch& batch) const {
  return options_.num_token_types > 1 ? batch.token_types : at::Tensor();
}

at::Tensor TokenEmbeddings::positions_of(const PackedBatch& batch) const {
  if (!options_.positions_skip_padding) {
    return position_ ? batch.positions : at::zeros_like(batch.positions);
  }
  const auto counts = batch.input_ids.ne(options_.pad_token_id).to(at::kLong);  // [T]
  const auto counted = counts.cumsum(0);
  const auto rows = at::arange(counts.size(0), counts.options());
  const auto before_text = (counted - counts).index_select(0, rows - batch.positions);
  return (counted - before_text) * counts + options_.pad_token_id;
}

onnx::Value TokenEmbeddings::add_to(const GraphTexts& texts) const {
  onnx::Graph& graph = texts.graph;
  const auto rows_of = [&](const Embedding& table, const onnx::Value& ids) {
    return graph.gather(graph.constant(table.weight), ids, 0);
  };
  onnx::Value x = rows_of(*word_, texts.input_ids);
  if (position_) x = graph.add(x, rows_of(*position_, positions_in(texts)));
  if (token_type_) {
    const bool are_read = options_.num_token_types > 1;
    x = graph.add(x, rows_of(*token_type_, are_read ? texts.token_type_ids : graph.integer(0)));
  }
  if (projection_) x = graph_linear(graph, *projection_, x);
  return graph_layer_norm(graph, *norm_, x);
}

/// As positions_of().
onnx::Value TokenEmbeddings::positions_in(const GraphTexts& texts) const {
  onnx::Graph& graph = texts.graph;
  if (!options_.positions_skip_padding) return texts.positions;
  const onnx::Value pad = graph.integer(options_.pad_token_id);
  const onnx::Value counts = graph.cast(graph.node("Not", {graph.node("Equal", {texts.input_ids, pad})}), at::kLong);
  const onnx::Value counted = graph.node("CumSum", {counts, graph.integer(1)});
  return graph.add(graph.mul(counted, counts), pad);
}

}  // namespace mezzo::text
