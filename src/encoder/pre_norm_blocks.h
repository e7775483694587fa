#pragma once

#include <ATen/core/Tensor.h>

#include "encoder/blocks.h"

/// The two halves of a transformer layer that begins with its norms (pre-norm), operators as those of
/// blocks.h. Linear layers may lack biases, the norm its bias or itself: undefined tensors.
namespace mezzo::encoder {

struct PreNormAttentionParams {
  LayerNormParams norm;          ///< its weight undefined: none
  LinearParams query_key_value;  ///< one matrix [3 H, H]
  LinearParams output;
  AttentionDescription attention;
  DropoutSite output_dropout;  ///< of the seed and step of `attention.dropout`
};

/// x + dropout(linear(packed_attention(query, key, value))), these three the columns of
/// linear(layer_norm(x)). Fused, once differentiable; keeps x, query, key, value and what attention
/// made of them.
/// @param x  [T, H]
/// @return [T, H]; with only_first_queries [B, H]
at::Tensor pre_norm_attention_block(const at::Tensor& x,
                                    const PreNormAttentionParams& params,
                                    const SequenceLayoutPtr& layout);

struct PreNormFeedForwardParams {
  LayerNormParams norm;
  LinearParams intermediate;  ///< [2 F, H]: rows of what is activated, then of its gate
  LinearParams output;        ///< [H, F]
  Activation activation;
  DropoutSite dropout;
};

/// x + linear(dropout(activation(a) * b)), where a and b are the left and the right half of
/// linear(layer_norm(x)). Fused, once differentiable; keeps x, a and b.
/// @param x  [T, H]
/// @param row_numbers  [T] int64: which rows of the batch these are, for dropout; undefined if they are all
at::Tensor pre_norm_feed_forward_block(const at::Tensor& x,
                                       const PreNormFeedForwardParams& params,
                                       const at::Tensor& row_numbers);

/// The specification of each, in ATen operations: differentiable to any order.
namespace reference {
at::Tensor pre_norm_attention_block(const at::Tensor& x,
                                    const PreNormAttentionParams& params,
                                    const SequenceLayoutPtr& layout);
at::Tensor pre_norm_feed_forward_block(const at::Tensor& x,
                                       const PreNormFeedForwardParams& params,
                                       const at::Tensor& row_numbers);
}  // namespace reference

}  // namespace mezzo::encoder
