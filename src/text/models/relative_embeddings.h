#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "text/models/graph_parts.h"
#include "text/models/modules.h"

namespace mezzo::text {

/// Learned embeddings of distances, which the layers of a model share, as in DeBERTa.
struct RelativeEmbeddingsOptions {
  int64_t span = 0;  ///< distances, or buckets of them, to either side: a table of 2 * span rows; 0: there is none
  std::vector<int64_t> rows;  ///< of the table, by distance: see encoder::RelativePositions
  bool has_norm = false;      ///< whether a layer norm comes before the layers
  double norm_eps = 0;
};

/// The row of each distance between `max_tokens` tokens, in a table of 2 * span rows. Each of the
/// nearest distances has one row. With `buckets`, distances beyond buckets / 2 share rows, on a
/// logarithmic scale up to `max_distance`.
/// @param buckets  0 or less for none
std::vector<int64_t> rows_of_distances(int64_t max_tokens, int64_t span, int64_t buckets, int64_t max_distance);

/// The part of the embeddings that the texts of a batch need.
struct RelativeRows {
  at::Tensor embeddings = {};    ///< all, [2 * span, H]; undefined if there are none
  int64_t first = 0, count = 0;  ///< rows of them that the texts need
  at::Tensor rows = {};          ///< int64, from `first` on: encoder::RelativePositions::rows
};

class RelativeEmbeddings {
 public:
  /// Registers `rel_embeddings`, and `LayerNorm` if there is one, at `path` in `root`.
  RelativeEmbeddings(torch::nn::Module& root,
                     std::string_view path,
                     const RelativeEmbeddingsOptions& options,
                     int64_t hidden_size);

  /// How many of the table's rows texts of that length need.
  int64_t count(int64_t longest) const;

  /// @param longest  tokens of the longest text
  RelativeRows forward(int64_t longest) const;
  /// All rows, [2 * span, H].
  at::Tensor table() const { return norm_ ? norm_->forward(table_->weight) : table_->weight; }
  /// In a graph: the row of each pair of tokens, [S, S].
  onnx::Value add_to(const GraphTexts& texts) const;

 private:
  std::vector<int64_t> rows_;
  std::shared_ptr<Embedding> table_;
  std::shared_ptr<LayerNorm> norm_;
  at::Tensor rows_on_device_;
};

}  // namespace mezzo::text
