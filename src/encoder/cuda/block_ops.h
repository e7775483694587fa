#pragma once

#include "encoder/block_ops.h"
#include "kernels/cuda/namespace.h"

/// BlockOps on a CUDA device, launched on its current stream.
namespace mezzo::encoder::MEZZO_CUDA {

template <class Pointer>
using Op = std::remove_pointer_t<Pointer>;

Op<decltype(BlockOps::residual_layer_norm)> residual_layer_norm;
Op<decltype(BlockOps::residual_layer_norm_backward)> residual_layer_norm_backward;
Op<decltype(BlockOps::embedding_layer_norm)> embedding_layer_norm;
Op<decltype(BlockOps::embedding_layer_norm_backward)> embedding_layer_norm_backward;
Op<decltype(BlockOps::add_rows_at)> add_rows_at;
Op<decltype(BlockOps::bias_activation)> bias_activation;
Op<decltype(BlockOps::bias_activation_backward)> bias_activation_backward;
Op<decltype(BlockOps::packed_attention)> packed_attention;
Op<decltype(BlockOps::packed_attention_backward)> packed_attention_backward;
Op<decltype(BlockOps::first_token_attention)> first_token_attention;
Op<decltype(BlockOps::first_token_attention_backward)> first_token_attention_backward;

extern const BlockOps kBlockOps;

}  // namespace mezzo::encoder::MEZZO_CUDA
