#pragma once

#include <ATen/core/Tensor.h>

#include "encoder/bert_blocks.h"
#include "encoder/packed_attention.h"
#include "kernels/random_key.h"

/// Whole parts of a BERT layer, each one node of the graph with its backward written by hand: matrix products by
/// cpu::Products, all between them by kernels of our own. Same results as the compositions of ATen operations named at
/// each, up to rounding, with the same dropout masks. Biases are added, and their gradients summed, in passes that are
/// made anyway; activations that are cheap to compute again are not kept. Follow autocast as those operations do. Once
/// differentiable.
namespace mezzo::kernels::fused {

/// Whether these blocks can take `x`, T rows, as things are: on a CPU, float32, bfloat16 or float16, and nobody wants
/// to see the operations one by one (an op policy, a cast log, a FiniteTracer). Where not, use the compositions.
bool can_run(const at::Tensor& x);

/// A linear layer: `weight` [out, in], `bias` [out].
struct LinearParams {
  const at::Tensor& weight;
  const at::Tensor& bias;
  /// `weight` as autocast would cast it, kept up to date by the caller, so that it need not; undefined if there is
  /// none.
  at::Tensor shadow = {};
};

/// embedding_layer_norm of bert_blocks.h.
at::Tensor embeddings(const at::Tensor& word,
                      const at::Tensor& position,
                      const at::Tensor& token_type,
                      const at::Tensor& ids,
                      const at::Tensor& positions,
                      const LayerNormParams& norm,
                      const DropoutSite& dropout);

struct AttentionParams {
  LinearParams query, key, value, output;
  LayerNormParams norm;
  int64_t num_heads;
  DropoutSite weights_dropout, output_dropout;
};

/// residual_layer_norm(linear(packed_attention(linear(x), linear(x), linear(x))), x).
/// @param x  [T, H]
/// @return [T, H]
at::Tensor attention(const at::Tensor& x, const AttentionParams& params, const SequenceLayout& layout);

/// The rows of `attention` that are the sequences' first, and nothing that they do not need: not even keys and values,
/// whose linear functions are taken on the side of the queries and of the outputs instead. The gradient of the keys'
/// bias, which changes no output, is exactly zero.
/// @return [B, H]
at::Tensor first_token_attention(const at::Tensor& x, const AttentionParams& params, const SequenceLayout& layout);

struct FeedForwardParams {
  LinearParams intermediate, output;
  Activation activation;
  LayerNormParams norm;
  DropoutSite dropout;
};

/// residual_layer_norm(linear(linear_activation(x)), x).
/// @param x  [T, H]
/// @param row_numbers  [T] int64: which rows of the batch these are, for dropout; undefined if they are all
at::Tensor feed_forward(const at::Tensor& x, const FeedForwardParams& params, const at::Tensor& row_numbers);

}  // namespace mezzo::kernels::fused
