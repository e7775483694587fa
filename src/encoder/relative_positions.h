#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cmath>

#include "encoder/sequence_layout.h"

namespace mezzo::encoder {

/// The terms that attention adds to its scores for the distance of two tokens (He et al. 2021, "DeBERTa"). For query i
/// and key j, let r = rows[i - j + (rows.size(0) - 1) / 2]. The score is (query_i . key_j + query_i . key_r + query_r .
/// key_j) / sqrt(head size * (1 + terms for positions)). On GPUs rows of queries and keys that are padding must be
/// finite. The products summed for the tables' gradients include them, times 0.
struct RelativePositions {
  at::Tensor key = {};    ///< [R, H], floating-point; undefined if that term is left out
  at::Tensor query = {};  ///< likewise
  /// [2 L - 1] int64, for at least as many tokens as the longest sequence has; never decreasing.
  at::Tensor rows = {};

  bool defined() const { return key.defined() || query.defined(); }
  int64_t num_rows() const { return (key.defined() ? key : query).size(0); }
  /// What scores are multiplied by.
  double scale(int64_t head_size) const {
    const int terms = 1 + (key.defined() ? 1 : 0) + (query.defined() ? 1 : 0);
    return 1 / std::sqrt(static_cast<double>(head_size * terms));
  }
  /// The rows for sequences of `length` tokens: [2 length - 1].
  at::Tensor rows_for(int64_t length) const;

  /// As operators get them, `rows` contiguous; nothing at all if no table is defined.
  /// @throws c10::ValueError  for tensors of other shapes, dtypes or devices; on a CPU, for rows that are not
  ///     there or out of order
  RelativePositions checked(const SequenceLayout& layout, const at::Device& device, int64_t hidden) const;
};

}  // namespace mezzo::encoder
