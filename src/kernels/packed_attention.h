#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/random_key.h"

namespace mezzo::kernels {

/// Where the sequences of a packed batch lie. B sequences, T rows.
struct SequenceLayout {
  /// @param cu_seqlens  [B + 1] int32 on CPU: sequence b owns rows cu_seqlens[b] to cu_seqlens[b + 1] - 1.
  /// @param seqlens  [B] int32 on CPU: how many of them count, from the first; the rest is padding that no query sees.
  /// @param num_rows  T; rows from cu_seqlens[B] on are filler that belongs to no sequence.
  SequenceLayout(const at::Tensor& cu_seqlens, const at::Tensor& seqlens, int64_t num_rows, const at::Device& device);

  /// Sequences of similar length, side by side: G of them, padded to the longest, L.
  struct Group {
    int64_t size;          ///< G
    int64_t max_seqlen;    ///< L
    at::Tensor pad_index;  ///< [G * L] int64: row of token i of sequence g, or row 0 where there is none
    at::Tensor key_mask;   ///< [G, 1, 1, L] bool: whether that token exists
  };

  std::vector<Group> groups;  ///< together, every sequence once
  at::Tensor first_rows;      ///< [B] int64: the row of each sequence's first token
  at::Tensor unpad_index;  ///< [T] int64: place of each row in the groups' padded rows, laid end to end; 0 for filler
};

/// Multi-head self-attention within each sequence:
/// softmax(Q K^T / sqrt(head size)) V, heads side by side in the columns.
///
/// @param query, key, value  [T, num_heads * head_size], one floating dtype.
/// @param dropout  probability on the attention weights; 0 outside training.
/// @return [T, num_heads * head_size]. Rows of filler and padding hold
///     finite values without meaning.
at::Tensor packed_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            int64_t num_heads,
                            const SequenceLayout& layout,
                            double dropout,
                            const RandomKey& random);

}  // namespace mezzo::kernels
