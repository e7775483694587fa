#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "encoder/sequence_layout.h"
#include "kernels/dropout_site.h"

namespace mezzo::encoder {

using kernels::DropoutSite;
using kernels::RandomKey;

/// The operator mezzo::packed_attention: multi-head self-attention within each sequence,
/// softmax(Q K^T / sqrt(head size)) V, heads side by side in the columns. LibTorch's flash
/// attention, where `runs_flash`.
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

/// Whether LibTorch's flash attention takes such heads: half types, on CUDA devices of compute
/// capability 8.0 and more, at most 256 columns, a multiple of 8.
bool has_flash(const at::Device& device, at::ScalarType dtype, int64_t head_size);
/// Whether it is that: where it takes the heads, and the sequences lie side by side without padding,
/// as the CPU knows.
bool runs_flash(const at::Device& device, at::ScalarType dtype, int64_t head_size, const SequenceLayoutPtr& layout);

namespace reference {
/// In ATen operations, for any device and dtype; differentiable to any order.
at::Tensor packed_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            int64_t num_heads,
                            const SequenceLayoutPtr& layout,
                            const DropoutSite& dropout);
}  // namespace reference

}  // namespace mezzo::encoder
