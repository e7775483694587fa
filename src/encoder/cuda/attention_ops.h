#pragma once

#include "encoder/cpu/attention_ops.h"
#include "kernels/cuda/namespace.h"

/// Attention on tensors of a CUDA device, without autograd: as cpu/attention_ops.h has it, for contiguous tensors of
/// one device. Structs want their `sequence_table`. Launched on the device's current stream; nothing waits for it.
namespace mezzo::kernels::MEZZO_CUDA {

using cpu::AttentionBiases;
using cpu::AttentionGradients;
using cpu::FirstTokenAttention;
using cpu::FirstTokenGradients;
using cpu::PackedAttention;
using cpu::WeightedRows;

/// Whether packed_attention takes heads of so many columns.
bool takes_heads_of(int64_t head_size);

at::Tensor packed_attention(const PackedAttention& attention, at::Tensor* log_sum_exp);

AttentionGradients packed_attention_backward(const PackedAttention& attention,
                                             const at::Tensor& log_sum_exp,
                                             const at::Tensor& grad);

WeightedRows first_token_attention(const FirstTokenAttention& attention, at::Tensor* log_sum_exp);

FirstTokenGradients first_token_attention_backward(const FirstTokenAttention& attention,
                                                   const at::Tensor& log_sum_exp,
                                                   const WeightedRows& grad,
                                                   at::ScalarType rows_dtype);

}  // namespace mezzo::kernels::MEZZO_CUDA
