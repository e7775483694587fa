#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "encoder/attention.h"

namespace mezzo::encoder {

/// Rotary position embeddings (Su et al. 2021): at position p, columns (d, head_size / 2 + d) of a head are turned. The
/// angle is p * theta^(-2 d / head_size), computed in float32.
/// @return [positions, head_size] float32 on CPU: cosines of the angles, then their sines
/// @throws c10::ValueError  for an odd `head_size`
at::Tensor rotary_table(int64_t positions, int64_t head_size, double theta);

/// The operator mezzo::packed_attention: multi-head self-attention within each sequence, softmax(scores) V, of the kind
/// that `description` says. By the device's kernels if fused::can_attend, once differentiable; else by the
/// specification, in autocast's dtype if it is on. Both take time for as many keys a query as a window lets in. Head h
/// gives key j of its sequence a weight at row t. Its mask uses word j % 4 of the Philox block {j / 4, t * num_heads +
/// h, step, site}, key seed. The weight is dropped if the word is below p * 2^32. For queries of first tokens, t is the
/// row of the sequence's first key. The mask is the same for every length, device and number of threads.
/// @param query, key, value  [T, num_heads * head_size], one floating dtype; with only_first_queries `query` is [B, …]
/// @return as `query`. Rows of filler and padding hold finite values without meaning.
/// @throws c10::ValueError  as AttentionDescription::checked
at::Tensor packed_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            const SequenceLayoutPtr& layout,
                            const AttentionDescription& description);

/// Whether a device multiplies matrices of both half types, as CUDA devices of compute capability 8.0 and more do.
/// Other devices that run mezzo's kernels count as such.
bool has_tensor_cores(const at::Device& device);

namespace reference {
/// In ATen operations, for any device and dtype; differentiable to any order.
at::Tensor packed_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            const SequenceLayoutPtr& layout,
                            const AttentionDescription& description);
/// `x` [..., head_size] turned by rows of a rotary_table(), which broadcast to it; dtype of `x`.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& table);
}  // namespace reference

}  // namespace mezzo::encoder
