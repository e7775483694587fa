#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace mezzo::text {

/// Keys the dropout masks of one forward pass: the same pair gives the same masks.
struct DropoutSeed {
  uint64_t seed = 0;
  uint32_t step = 0;  ///< micro-batch of the run, counted from 0
  /// 0-dim int64 on the model's device, added to `step` there, for steps that are recorded into a
  /// graph; undefined for 0. Must not change before backward.
  at::Tensor step_offset = {};
};

/// B texts as T rows of one token each, text after text. Packed batches hold no padding; padded
/// ones, kept for comparison, hold rows past `seqlens`.
struct PackedBatch {
  at::Tensor input_ids;    ///< [T] int64
  at::Tensor positions;    ///< [T] int64: place of each token in its text, from 0
  at::Tensor token_types;  ///< [T] int64: of a pair of texts, which one; undefined where all are 0
  at::Tensor cu_seqlens;   ///< [B + 1] int32, on CPU: text b owns rows cu_seqlens[b] to cu_seqlens[b + 1] - 1
  at::Tensor seqlens;      ///< [B] int32, on CPU: its tokens; fewer than its rows only where it is padded
  at::Tensor targets;      ///< [B, ...], or [T] int64 where each token has one: what a Task compares outputs with;
                           ///< undefined when there are none
  int64_t num_tokens = 0;  ///< tokens of real text, [CLS] and [SEP] included

  /// [texts] int64: how many of the B, one after the other, are windows of each; undefined where every one is a text.
  at::Tensor window_counts = {};

  /// [B, 2] int32 on the device: first row and tokens of each text, where the device alone is to
  /// know them, so that a step can be recorded into a graph; `cu_seqlens` and `seqlens` are
  /// undefined then. Undefined otherwise.
  at::Tensor sequence_table = {};
  int64_t max_seqlen = 0;  ///< with `sequence_table`: tokens that no text has more of

  int64_t size() const { return (sequence_table.defined() ? sequence_table : seqlens).size(0); }
  /// Of what `device` computes with. Never waits for it.
  PackedBatch to(const at::Device& device) const;
};

/// How texts become rows.
struct PackOptions {
  int64_t pad_to = 0;         ///< rows each text gets at least: 0 packs without padding
  int64_t pad_id = 0;         ///< token id of padding and filler
  int64_t round_rows_to = 1;  ///< T is rounded up to a multiple with filler rows, so matrix shapes recur
};

/// @param texts  B sequences of token ids, none empty, none longer than `pad_to` when that is set.
/// @param token_types  as long as `texts` each, or none at all where all are 0.
/// @return on CPU, without targets.
PackedBatch pack(std::span<const std::span<const int32_t>> texts,
                 const PackOptions& options,
                 std::span<const std::span<const int32_t>> token_types = {});

}  // namespace mezzo::text
