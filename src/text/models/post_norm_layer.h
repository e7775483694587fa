#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "encoder/blocks.h"
#include "mezzo/text/data/packed_batch.h"
#include "mezzo/text/models/encoder.h"
#include "text/models/graph_parts.h"
#include "text/models/modules.h"
#include "text/models/relative_embeddings.h"

namespace mezzo::text {

/// A family's names for the modules of a layer.
struct PostNormLayerNames {
  std::string_view query, key, value, attention_output, attention_norm, intermediate, output, output_norm;
  std::string_view position_key = {}, position_query = {};  ///< if relative positions have separate projections
};

constexpr PostNormLayerNames kBertLayerNames{.query = "attention.self.query",
                                             .key = "attention.self.key",
                                             .value = "attention.self.value",
                                             .attention_output = "attention.output.dense",
                                             .attention_norm = "attention.output.LayerNorm",
                                             .intermediate = "intermediate.dense",
                                             .output = "output.dense",
                                             .output_norm = "output.LayerNorm"};

/// Which terms scores have for relative positions (encoder::RelativePositions).
struct RelativeTermsOptions {
  bool has_key_term = false, has_query_term = false;
  bool shares_projections = false;  ///< whether they go through the projections of keys and queries
  double dropout = 0;               ///< of the relative embeddings, as a layer reads them
};

struct PostNormLayerOptions {
  PostNormLayerNames names = kBertLayerNames;
  int64_t hidden_size = 0, intermediate_size = 0, num_heads = 0;
  encoder::Activation activation = encoder::Activation::kGelu;
  double norm_eps = 0;
  double attention_weights_dropout = 0, attention_output_dropout = 0, output_dropout = 0;
  RelativeTermsOptions relative = {};
};

/// Values that all layers of a graph share.
struct LayerGraph {
  onnx::Value is_seen;         ///< graph_seen_keys()
  at::Tensor relative = {};    ///< as of RelativeEmbeddings::table(); undefined if there are none, …
  onnx::Value distances = {};  ///< … and of its add_to()
};

/// A layer of a transformer whose halves each end with a layer norm (Vaswani et al. 2017; BERT):
/// layer_norm(x + attention(x)), then layer_norm(x + feed_forward(x)).
class PostNormLayer : public torch::nn::Module, public SharesInput {
 public:
  explicit PostNormLayer(const PostNormLayerOptions& options);

  /// @param layer  its number, for dropout
  /// @param only_first_rows  whether no row but each sequence's first is needed
  /// @param relative  with dropout, if the layer has terms for relative positions
  /// @return [B, H] with `only_first_rows`, else [T, H]
  at::Tensor forward(const at::Tensor& x,
                     const encoder::SequenceLayoutPtr& layout,
                     const DropoutSeed& random,
                     int64_t layer,
                     bool only_first_rows,
                     const RelativeRows& relative) const;
  /// The same in a graph, of all rows.
  onnx::Value add_to(const GraphTexts& texts, const onnx::Value& x, const LayerGraph& shared) const;

  std::vector<at::Tensor> weights_of_one_input() const override;

 private:
  encoder::RelativePositions positions_of(const RelativeRows& relative) const;
  onnx::Value scores_in(onnx::Graph& graph, const onnx::Value& x, const LayerGraph& shared) const;

  PostNormLayerOptions options_;
  std::shared_ptr<Dense> query_, key_, value_, attention_output_, intermediate_, output_;
  std::shared_ptr<Dense> position_key_, position_query_;  ///< of relative positions; nullptr for no such term
  std::shared_ptr<LayerNorm> attention_norm_, output_norm_;
};

/// A stack of them, under the names 0, 1, …
class PostNormLayers : public torch::nn::Module {
 public:
  PostNormLayers(int64_t count, const PostNormLayerOptions& options);

  /// @param path  of this module in the model, for ModuleScope
  /// @param rows  of the last layer
  at::Tensor forward(at::Tensor x,
                     const encoder::SequenceLayoutPtr& layout,
                     const DropoutSeed& random,
                     RowsPer rows,
                     std::string_view path,
                     const RelativeRows& relative = {}) const;
  onnx::Value add_to(const GraphTexts& texts, onnx::Value x, const LayerGraph& shared) const;

  void set_gradient_checkpointing(bool on) { checkpointing_ = on; }

 private:
  std::vector<std::shared_ptr<PostNormLayer>> layers_;
  double relative_dropout_;
  bool checkpointing_ = false;
};

}  // namespace mezzo::text
