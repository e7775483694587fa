#include "text/models/post_norm_encoder.h"

#include <algorithm>
#include <optional>

#include "mezzo/amp/module_scope.h"

// T rows (tokens of all texts), B texts, H hidden size.

namespace mezzo::text {

PostNormEncoder::PostNormEncoder(const PostNormEncoderOptions& options)
    : options_(options),
      embeddings_(register_module("embeddings", std::make_shared<TokenEmbeddings>(options.embeddings))) {
  const int64_t hidden = options.layer.hidden_size;
  if (options.embeddings.size != hidden && options.embeddings.projected_size == 0) {
    embeddings_project_ =
        register_module("embeddings_project", std::make_shared<Dense>(options.embeddings.size, hidden));
  }
  if (options.relative.span > 0) {
    relative_.emplace(*this, options.relative_path, options.relative, hidden);
  }
  layers_ =
      register_at(*this, options.layers_path, std::make_shared<PostNormLayers>(options.num_layers, options.layer));
  if (options.has_pooler) {
    pooler_ = register_at(*this, "pooler.dense", std::make_shared<Dense>(hidden, hidden));
  }
}

at::Tensor PostNormEncoder::forward(const PackedBatch& batch, const DropoutSeed& random, RowsPer rows) {
  const ModuleScope scope(options_.name);
  auto x = embeddings_->forward(batch, random);  // [T, H], or narrower
  if (embeddings_project_) {
    const ModuleScope project("embeddings_project");
    x = embeddings_project_->forward(x);
  }
  const auto layout = layout_of(batch);
  const auto relative = relative_ && layout->longest() > 0 ? relative_->forward(layout->longest()) : RelativeRows();
  x = layers_->forward(x, layout, random, rows, options_.layers_path, relative);  // [B, H] or [T, H]
  if (!pooler_ || rows != RowsPer::kText) {
    return x;
  }
  const ModuleScope pooler("pooler");
  return pooler_->forward(x).tanh();
}

std::string PostNormEncoder::add_to(const GraphTexts& texts, RowsPer rows) const {
  onnx::Graph& graph = texts.graph;
  onnx::Value x = embeddings_->add_to(texts);
  if (embeddings_project_) x = graph_linear(graph, *embeddings_project_, x);
  LayerGraph shared{.is_seen = graph_seen_keys(texts, std::nullopt)};
  if (relative_) {
    const at::NoGradGuard no_grad;
    shared.relative = relative_->table();
    shared.distances = relative_->add_to(texts);
  }
  x = layers_->add_to(texts, x, shared);
  if (rows == RowsPer::kToken) return x;
  x = graph.gather(x, graph.integer(0), 1);
  return pooler_ ? graph.node("Tanh", {graph_linear(graph, *pooler_, x)}) : x;
}

bool PostNormEncoder::takes_unknown_lengths(const at::Device& device,
                                            at::ScalarType dtype,
                                            int64_t /*max_seqlen*/) const {
  return encoder::can_attend_unknown(device, dtype, options_.layer.hidden_size / options_.layer.num_heads,
                                     /*has_relative=*/relative_.has_value());
}

int64_t PostNormEncoder::layer_of(std::string_view parameter) const {
  const std::string_view path = options_.layers_path;
  if (parameter.starts_with(path) && parameter.substr(path.size()).starts_with('.')) {
    return 1 + std::stoll(std::string(parameter.substr(path.size() + 1)));
  }
  const bool is_relative = relative_ && parameter.starts_with(options_.relative_path);
  return is_relative || parameter.starts_with("embeddings") ? 0 : options_.num_layers + 1;
}

RowBytes PostNormEncoder::row_bytes(Precision precision, int64_t longest) const {
  const auto hidden = static_cast<double>(options_.layer.hidden_size);
  const auto inner = static_cast<double>(options_.layer.intermediate_size);
  const auto heads = static_cast<double>(options_.layer.num_heads);
  const auto embedding = static_cast<double>(options_.embeddings.size);
  const auto projected = static_cast<double>(options_.embeddings.projected_size);
  const bool is_float = precision == Precision::kFloat32;
  const double product = is_float ? 4 : 2;  // of an element
  RowBytes bytes;
  // The norm's rows, and the input of a projection before or after it.
  bytes.embeddings =
      4 * (projected > 0 ? projected : embedding) + (projected > 0 || embeddings_project_ ? product * embedding : 0);
  // Its input, queries, keys, values and context; the first norm, and its output; the inner product; the second norm.
  // Also, of each head, the logarithm of its softmax's sum. In half precision all but the norms and those have two
  // bytes.
  bytes.layer = is_float ? 4 * (8 * hidden + inner + heads) : 20 * hidden + 2 * inner + 4 * heads;
  // Gradients of the layer's output, of its second half's two inputs, of the inner rows, and the
  // activations once more.
  bytes.work = is_float ? 4 * (3 * hidden + 2 * inner) : 10 * hidden + 4 * inner;
  if (relative_ && longest > 0) {
    const auto positions = static_cast<double>(relative_->count(longest));
    const auto& relative = options_.layer.relative;
    const double terms = (relative.has_key_term ? 1 : 0) + (relative.has_query_term ? 1 : 0);
    // The projections' inputs and outputs. In half precision there is one input for each term, of those rows alone.
    const auto table = static_cast<double>(2 * options_.relative.span);
    bytes.tables = hidden * (is_float ? 4 * (table + positions * terms) : 4 * positions * terms);
    const at::Device device = embeddings_->parameters().front().device();
    if (!device.is_cpu() && !device.is_meta()) {
      // Attention's gradients, of its output and of the residual; of each head a score for each position, and its
      // gradient.
      bytes.work = std::max(bytes.work, (4 + 4 * product) * hidden + heads * positions * terms * (4 + product));
    }
  }
  return bytes;
}

}  // namespace mezzo::text
