#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/cpu/row_ops.h"
#include "kernels/packed_attention.h"

namespace mezzo::kernels::cpu {

/// Biases [H] of the products that made query, key and value, which the kernel adds.
struct AttentionBiases {
  at::Tensor query, key, value;
};

/// Attention over packed rows, without autograd: contiguous CPU tensors of float32, bfloat16 or float16. T rows of all
/// sequences.
struct PackedAttention {
  at::Tensor query;  ///< [T, H]; or [B, H], of the sequences' first tokens alone
  at::Tensor key;    ///< [T, H]
  at::Tensor value;  ///< [T, H]
  AttentionBiases biases;
  int64_t num_heads;
  std::vector<Sequence> sequences;
  DropoutSite dropout;  ///< weight of query row t and key j of head h: see packed_attention.h
};

/// @param log_sum_exp  set to float32 [rows of query, num_heads], which backward needs; nullptr if it will not be
/// called
/// @return shape and dtype of `query`. Rows of padding and filler are zero.
at::Tensor packed_attention(const PackedAttention& attention, at::Tensor* log_sum_exp);

struct AttentionGradients {
  at::Tensor query, key, value;  ///< shapes and dtypes as the inputs; zero in rows of padding and filler
  AttentionBiases biases;        ///< float32
};

AttentionGradients packed_attention_backward(const PackedAttention& attention,
                                             const at::Tensor& log_sum_exp,
                                             const at::Tensor& grad);

}  // namespace mezzo::kernels::cpu
