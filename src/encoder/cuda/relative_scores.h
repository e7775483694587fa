#pragma once

#include <cstdint>

#include "encoder/cuda/attention_launchers.h"
#include "encoder/cuda/attention_tiles.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"

/// How kernels of packed attention read and write the entries of a line, one for each row of a table of positions.
namespace mezzo::encoder::MEZZO_CUDA {

/// The row of a distance, within the table whatever `rows` holds; `require_rows` reports wrong rows.
MEZZO_DEVICE int row_of(const RelativeScores& relative, int distance) {
  const auto row = static_cast<int>(relative.rows[distance]);
  return row < 0 ? 0 : smaller(row, relative.num_rows - 1);
}

/// Only the first block looks.
MEZZO_DEVICE void require_rows(const Block& block, const RelativeScores& relative, int longest) {
  for (int distance = 1 - longest + block.thread(); block.index() == 0 && distance < longest;
       distance += block.threads()) {
    const int64_t row = relative.rows[distance], before = distance > 1 - longest ? relative.rows[distance - 1] : 0;
    block.require(before <= row && row < relative.num_rows,
                  "attention: a row of relative positions is out of its table's range, or out of order");
  }
}

/// The first element of the line of a head's query or key `row`.
MEZZO_DEVICE int64_t query_line(const PackedAttentionArguments& a, const Head& head, int row) {
  const int64_t queries = a.rule.only_first_queries ? a.sequences.count : a.sequences.num_rows;
  return (head.number * queries + head.first_query + row) * a.relative.num_rows;
}
MEZZO_DEVICE int64_t key_line(const PackedAttentionArguments& a, const Head& head, int row) {
  return (head.number * a.sequences.num_rows + head.first_row + row) * a.relative.num_rows;
}

/// The score of a pair's distance, before the scale.
MEZZO_DEVICE float relative_score(const PackedAttentionArguments& a, const Head& head, int query, int key) {
  const int row = row_of(a.relative, query - key);
  float score = 0;
  if (a.relative.of_queries != nullptr) {
    score += a.relative.of_queries[query_line(a, head, query) + row];
  }
  if (a.relative.of_keys != nullptr) {
    score += a.relative.of_keys[key_line(a, head, key) + row];
  }
  return score;
}

/// The score of a product of query and key, in powers of two, if there are relative positions or a soft cap c.
/// @param slope  set to the derivative of c tanh(s / c) by s
MEZZO_DEVICE float extra_score(
    const PackedAttentionArguments& a, const Head& head, float product, int query, int key, float* slope = nullptr) {
  if (a.relative.rows != nullptr) {
    product += relative_score(a, head, query, key);
  }
  float score = product * a.rule.scale;
  if (a.rule.soft_cap > 0) {
    const float part = ::tanhf(score / a.rule.soft_cap);
    score = a.rule.soft_cap * part;
    if (slope != nullptr) {
      *slope = 1 - part * part;
    }
  }
  return score * kLog2E;
}

/// Sums of numbers that have one row of the table. They come side by side, as rows never decrease with the distance.
struct RowSum {
  int row = -1;
  float sum = 0;

  /// @param line  of the gradients
  MEZZO_DEVICE void add(int next_row, float number, const Span& grads, int64_t line) {
    if (next_row != row) {
      put(grads, line);
      row = next_row;
      sum = 0;
    }
    sum += number;
  }
  MEZZO_DEVICE void put(const Span& grads, int64_t line) const {
    if (row >= 0) {
      store(grads, line + row, sum);
    }
  }
};

}  // namespace mezzo::encoder::MEZZO_CUDA
