#pragma once

#include <optional>
#include <vector>

#include "encoder/attention.h"
#include "encoder/blocks.h"

/// The nodes of the graph that fused blocks are composed of, each with its backward written by hand. They are a product
/// of one input with some weights (project), attention (packed_attention), and a product that ends in a residual
/// (finish). `x` and `residual` [T, H] are contiguous; with `first_rows` [B] int64, the rows of each sequence's first
/// token, some results have a row a sequence. Once differentiable.
namespace mezzo::encoder::fused {

/// What project() gives.
struct Projection {
  std::vector<at::Tensor> parts;
  at::Tensor residual;  ///< x, or its first rows: its gradient joins that of x in the same node
};

/// x times weights, transposed; biases are left to the node that follows.
/// @param norm  normalises x before; its weight undefined: none
/// @param layers  a weight for each of `parts`, or one for all of them, side by side
/// @param first_rows  rows of the first part and of the residual; undefined for all
/// @param adds_to_residual  whether backward may overwrite the residual's gradient: nothing else may hold it
Projection project(const at::Tensor& x,
                   const LayerNormParams& norm,
                   const std::vector<LinearParams>& layers,
                   int64_t parts,
                   const at::Tensor& first_rows,
                   bool adds_to_residual);

/// Attention of rows that lack biases yet.
at::Tensor packed_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            const AttentionBiases& biases,
                            const SequenceLayoutPtr& layout,
                            const AttentionDescription& description);

/// What finish() makes of its rows before the product.
struct InnerActivation {
  Activation kind;
  bool is_gated;           ///< whether rows are [T, 2 F]: the activation's input, and its gate
  const at::Tensor& bias;  ///< added before; undefined for none
  DropoutSite dropout = {};
};

/// How finish() ends: layer_norm(residual + dropout(product + bias)), or without the norm if its weight is undefined.
struct Ending {
  const LayerNormParams& norm;
  const DropoutSite& dropout;
  const at::Tensor& row_numbers;  ///< rows of the dropout masks; undefined for 0 ... T - 1
};

/// A linear layer of activation(rows), or of rows, and its ending.
at::Tensor finish(const at::Tensor& rows,
                  const std::optional<InnerActivation>& activation,
                  const LinearParams& layer,
                  const at::Tensor& residual,
                  const Ending& ending);

/// Where keys and values are not computed at all (BlockOps::first_token_attention): the attention of each sequence's
/// first token. @return its context, and the residual
Projection first_token_attention(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout);

}  // namespace mezzo::encoder::fused
