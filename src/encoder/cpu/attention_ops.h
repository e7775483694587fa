#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "encoder/cpu/row_ops.h"
#include "encoder/packed_attention.h"

namespace mezzo::kernels::cpu {

/// Biases [H] of the products that made query, key and value, which the kernel adds.
struct AttentionBiases {
  at::Tensor query, key, value;
};

/// Attention over packed rows, without autograd: contiguous CPU tensors of float32, bfloat16 or float16. T rows of all
/// sequences.
struct PackedAttention {
  at::Tensor query, key, value;  ///< [T, H]
  AttentionBiases biases;
  int64_t num_heads;
  std::vector<Sequence> sequences;
  DropoutSite dropout;             ///< weight of query row t and key j of head h: see packed_attention.h
  at::Tensor sequence_table = {};  ///< SequenceLayout's, of `sequences`; for GPUs
};

/// @param log_sum_exp  set to float32 [T, num_heads], which backward needs; nullptr if it will not be called
/// @return [T, H], dtype of `query`. Rows of padding and filler are zero.
at::Tensor packed_attention(const PackedAttention& attention, at::Tensor* log_sum_exp);

struct AttentionGradients {
  at::Tensor query, key, value;  ///< shapes and dtypes as the inputs; zero in rows of padding and filler
  AttentionBiases biases;        ///< float32
};

AttentionGradients packed_attention_backward(const PackedAttention& attention,
                                             const at::Tensor& log_sum_exp,
                                             const at::Tensor& grad);

/// Attention of the B sequences' first tokens to rows of which keys and values are linear functions, so that neither
/// need be computed: query . (W row) = (W^T query) . row, and a sum of weights times W row + b is W (sum of weights
/// times row) + (sum of weights) b. A bias of the keys shifts all scores of a query alike, which softmax does not see.
struct FirstTokenAttention {
  at::Tensor query;  ///< [num_heads, B, H]: for each head, W^T times the part of the query that is the head's
  at::Tensor rows;   ///< [T, H], dtype of `query`
  float scale;       ///< of the scores
  std::vector<Sequence> sequences;
  DropoutSite dropout;             ///< as in PackedAttention
  at::Tensor sequence_table = {};  ///< as in PackedAttention
};

struct WeightedRows {
  at::Tensor rows;         ///< [num_heads, B, H]: sums of weights times rows; dtype of `query`
  at::Tensor weight_sums;  ///< [B, num_heads] float32
};

/// @param log_sum_exp  set to float32 [B, num_heads], which backward needs; nullptr if it will not be called
WeightedRows first_token_attention(const FirstTokenAttention& attention, at::Tensor* log_sum_exp);

struct FirstTokenGradients {
  at::Tensor query;  ///< as the input
  at::Tensor rows;   ///< [T, H], `rows_dtype`; zero in rows of padding and filler
};

FirstTokenGradients first_token_attention_backward(const FirstTokenAttention& attention,
                                                   const at::Tensor& log_sum_exp,
                                                   const WeightedRows& grad,
                                                   at::ScalarType rows_dtype);

}  // namespace mezzo::kernels::cpu
