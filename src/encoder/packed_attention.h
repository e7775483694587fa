#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "encoder/dropout_site.h"
#include "encoder/relative_positions.h"
#include "encoder/sequence_layout.h"

namespace mezzo::encoder {

/// What attention makes of the places of tokens in their sequence.
struct TokenPositions {
  at::Tensor rotary = {};  ///< a rotary_table() that turns queries and keys, itself a constant; undefined for none
  std::optional<int64_t> window = {};  ///< a query sees keys at most so far from it; nullopt: all of its sequence

  /// As operators get them.
  /// @throws c10::ValueError  for a negative window, or a table of heads of another size, for fewer tokens
  ///     than the longest sequence has, or not on `device`
  static TokenPositions of(const std::optional<at::Tensor>& rotary,
                           std::optional<int64_t> window,
                           const SequenceLayout& layout,
                           const at::Device& device,
                           int64_t head_size);
};

/// Rotary position embeddings (Su et al. 2021): at place p, columns (d, head_size / 2 + d) of a head
/// are turned by the angle p * theta^(-2 d / head_size), computed in float32.
/// @return [positions, head_size] float32 on CPU: cosines of the angles, then their sines
/// @throws c10::ValueError  for an odd `head_size`
at::Tensor rotary_table(int64_t positions, int64_t head_size, double theta);

/// The operator mezzo::packed_attention: multi-head self-attention within each sequence,
/// softmax(Q K^T / sqrt(head size)) V, heads side by side in the columns, scores being those of
/// RelativePositions where there are any. With a window it takes time
/// and memory for as many keys a query as that lets in. LibTorch's flash attention, where
/// `runs_flash`.
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
                            const DropoutSite& dropout,
                            const TokenPositions& positions = {},
                            const RelativePositions& relative = {});

/// Whether a device multiplies matrices of both half types, as CUDA devices of compute capability 8.0 and
/// more do; others that run kernels of the house do as if.
bool has_tensor_cores(const at::Device& device);
/// Whether LibTorch's flash attention takes such heads: half types, on CUDA devices of compute capability
/// 8.0 and more, a multiple of 8 and at most 192 columns: with more, consumer GPUs have no backward pass.
bool has_flash(const at::Device& device, at::ScalarType dtype, int64_t head_size);
/// Whether it also does texts of so many tokens faster than kernels of the house.
bool prefers_flash(const at::Device& device, at::ScalarType dtype, int64_t head_size, int64_t longest);
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
                            const DropoutSite& dropout,
                            const TokenPositions& positions = {},
                            const RelativePositions& relative = {});
/// `x` [..., head_size] turned by rows of a rotary_table(), which broadcast to it; dtype of `x`.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& table);
}  // namespace reference

}  // namespace mezzo::encoder
