#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "encoder/sequence_layout.h"
#include "kernels/random_key.h"

namespace mezzo::kernels {

/// The operator mezzo::packed_attention: multi-head self-attention within each sequence,
/// softmax(Q K^T / sqrt(head size)) V, heads side by side in the columns. On CUDA LibTorch's flash
/// attention, where that takes the dtype and the head size.
/// @param query, key, value  [T, num_heads * head_size], one floating dtype
/// @param dropout  of the attention weights; p is 0 outside training. The weight that head h gives
///     key j of its sequence at row t is dropped when word j % 4 of the Philox block
///     {j / 4, t * num_heads + h, step, site}, key seed, is below p * 2^32. (Flash attention draws
///     others, of the same key.)
/// @return [T, num_heads * head_size], differentiable; to any order but for flash attention. Rows
///     of filler and padding hold finite values without meaning.
at::Tensor packed_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            int64_t num_heads,
                            const SequenceLayoutPtr& layout,
                            const DropoutSite& dropout);

namespace reference {
/// In ATen operations, for any device and dtype; differentiable to any order.
at::Tensor packed_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            int64_t num_heads,
                            const SequenceLayoutPtr& layout,
                            const DropoutSite& dropout);
}  // namespace reference

}  // namespace mezzo::kernels
