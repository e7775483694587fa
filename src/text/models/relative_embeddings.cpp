#include "text/models/relative_embeddings.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

namespace mezzo::text {
std::vector<int64_t> rows_of_distances(int64_t max_tokens, int64_t span, int64_t buckets, int64_t max_distance) {
  const auto distances = at::arange(1 - max_tokens, max_tokens, at::kLong);
  auto places = distances;
  if (buckets > 0) {
    // In float32, as in the models' own code: float32 rounding decides a bucket's border.
    const int64_t middle = buckets / 2;
    const auto far = distances.abs().clamp_min(middle);
    const auto whole =
        at::scalar_tensor(static_cast<double>(max_distance - 1) / static_cast<double>(middle), at::kFloat);
    const auto steps = at::ceil(at::log(far / middle) / at::log(whole) * (middle - 1)) + middle;
    places = at::where(distances.abs().le(middle), distances, (steps * distances.sign()).to(at::kLong));
  }
  const auto rows = (places + span).clamp(0, 2 * span - 1);
  const int64_t* const first = rows.const_data_ptr<int64_t>();
  return {first, first + rows.numel()};
}

RelativeEmbeddings::RelativeEmbeddings(torch::nn::Module& root,
                                       std::string_view path,
                                       const RelativeEmbeddingsOptions& options,
                                       int64_t hidden_size)
    : rows_(options.rows),
      table_(register_at(
          root, fmt::format("{}.rel_embeddings", path), std::make_shared<Embedding>(2 * options.span, hidden_size))),
      norm_(options.has_norm ? register_at(root,
                                           fmt::format("{}.LayerNorm", path),
                                           std::make_shared<LayerNorm>(hidden_size, options.norm_eps))
                             : nullptr),
      // Moves with the parameters, and is not saved.
      rows_on_device_(root.register_buffer("relative_rows", at::tensor(options.rows, at::kLong))) {}

int64_t RelativeEmbeddings::count(int64_t longest) const {
  const auto middle = static_cast<int64_t>(rows_.size()) / 2;
  TORCH_CHECK_INDEX(longest <= middle + 1, "a text of ", longest, " tokens is longer than the model's ", middle + 1);
  return rows_[middle + longest - 1] - rows_[middle + 1 - longest] + 1;
}

RelativeRows RelativeEmbeddings::forward(int64_t longest) const {
  const int64_t rows = count(longest);  // which looks at `longest`
  const int64_t begin = static_cast<int64_t>(rows_.size()) / 2 + 1 - longest, first = rows_[begin];
  return {table(), first, rows, rows_on_device_.narrow(0, begin, 2 * longest - 1) - first};
}

onnx::Value RelativeEmbeddings::add_to(const GraphTexts& texts) const {
  onnx::Graph& graph = texts.graph;
  const auto farthest = static_cast<int64_t>(rows_.size()) / 2;
  const onnx::Value distance = graph.sub(graph.unsqueeze(texts.positions, {1}), graph.unsqueeze(texts.positions, {0}));
  return graph.gather(graph.constant(rows_on_device_), graph.add(distance, graph.integer(farthest)), 0);
}

}  // namespace mezzo::text
