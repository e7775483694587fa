#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace mezzo::text {

/// The key of the dropout masks of one forward pass: equal keys give equal masks.
struct DropoutSeed {
  uint64_t seed = 0;  ///< of the run
  uint32_t step = 0;  ///< micro-batch of the run, counted from 0
  /// 0-dim int64 on the model's device, added to `step` on the device, for steps that are recorded
  /// into a graph. Undefined: 0. Must not change before backward.
  at::Tensor step_offset = {};
};

/// B texts as T rows of one token each, text after text. Packed batches contain no padding. Padded
/// batches, kept for comparison, have rows after `seqlens`.
struct PackedBatch {
  at::Tensor input_ids;    ///< [T] int64
  at::Tensor positions;    ///< [T] int64: place of each token in its text, from 0
  at::Tensor token_types;  ///< [T] int64: which text of a pair; undefined if all are 0
  at::Tensor cu_seqlens;   ///< [B + 1] int32, on CPU: text b owns rows cu_seqlens[b] to cu_seqlens[b + 1] - 1
  at::Tensor seqlens;      ///< [B] int32, on CPU: its tokens; fewer than its rows if it is padded
  at::Tensor targets;      ///< [B, ...], or [T] int64 with one target per token: compared with outputs by a Task;
                           ///< undefined without labels
  int64_t num_tokens = 0;  ///< tokens of real text, [CLS] and [SEP] included

  /// [texts] int64: the number of consecutive windows of each text; undefined if each is one text.
  at::Tensor window_counts = {};

  /// [B, 2] int32 on the device: first row and number of tokens of each text. Used if only the
  /// device knows them, so that a step can be recorded into a graph. `cu_seqlens` and `seqlens` are
  /// then undefined. Otherwise this is undefined.
  at::Tensor sequence_table = {};
  int64_t max_seqlen = 0;  ///< with `sequence_table`: an upper limit of a text's tokens

  /// The number of texts, B.
  int64_t size() const { return (sequence_table.defined() ? sequence_table : seqlens).size(0); }
  /// Moves the tensors that `device` computes with. Never waits for the device.
  PackedBatch to(const at::Device& device) const;
};

/// Options of pack().
struct PackOptions {
  int64_t pad_to = 0;  ///< minimum number of rows per text; 0 packs without padding
  int64_t pad_id = 0;  ///< token id of padding and filler
  int64_t rows = 0;    ///< minimum of T; the rows after the texts are filler
};

/// Packs texts into one batch.
/// @param texts  B sequences of token ids; none is empty, and none longer than `pad_to` if that is
///     set
/// @param token_types  as long as `texts` each, or empty if all are 0
/// @return on CPU, without targets
PackedBatch pack(std::span<const std::span<const int32_t>> texts,
                 const PackOptions& options,
                 std::span<const std::span<const int32_t>> token_types = {});

}  // namespace mezzo::text
