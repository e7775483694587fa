#pragma once

#include <cstdint>

#include "encoder/cuda/attention_launchers.h"
#include "encoder/cuda/attention_tiles.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"

/// How kernels of packed attention read and write what there is for each row of a table of positions.
namespace mezzo::encoder::MEZZO_CUDA {

/// The row of a distance: one that is there, whatever the rows are; `require_rows` complains of others.
MEZZO_DEVICE int row_of(const int64_t* rows, int num_rows, int distance) {
  const auto row = static_cast<int>(rows[distance]);
  return row < 0 ? 0 : row < num_rows ? row : num_rows - 1;
}

/// The first block looks for all.
MEZZO_DEVICE void require_rows(const Block& block, const int64_t* rows, int num_rows, int longest) {
  for (int distance = 1 - longest + block.thread(); block.index() == 0 && distance < longest;
       distance += block.threads()) {
    const int64_t row = rows[distance], before = distance > 1 - longest ? rows[distance - 1] : 0;
    block.require(before <= row && row < num_rows,
                  "attention: a row of relative positions is out of its table's range, or out of order");
  }
}

/// A line a query or key of one head, an entry a row of the table; or one entry, that of the row that is met.
template <class Number>
struct Lines {
  Number* data;
  int64_t stride;
  int step;
  MEZZO_DEVICE Number* at(int line, int row) const { return data + line * stride + row * step; }
};

template <class Number>
MEZZO_DEVICE Lines<Number> query_lines(const PackedAttentionArguments& a, const Head& head, Number* data) {
  const int64_t queries = a.only_first_queries ? a.sequences.count : a.sequences.num_rows, line = a.relative.num_rows;
  return {data + (head.number * queries + head.first_query) * line, line, 1};
}

template <class Number>
MEZZO_DEVICE Lines<Number> key_lines(const PackedAttentionArguments& a, const Head& head, Number* data) {
  const int64_t line = a.only_first_queries ? 1 : a.relative.num_rows;
  return {data + (head.number * a.sequences.num_rows + head.first_row) * line, line, a.only_first_queries ? 0 : 1};
}

/// What a score gets for the distance of a query and a key.
MEZZO_DEVICE float relative_score(const PackedAttentionArguments& a, const Head& head, int query, int key) {
  const int row = row_of(a.relative.rows, a.relative.num_rows, query - key);
  float score = 0;
  if (a.relative.of_queries != nullptr) {
    score += *query_lines(a, head, a.relative.of_queries).at(query, row);
  }
  if (a.relative.of_keys != nullptr) {
    score += *key_lines(a, head, a.relative.of_keys).at(key, row);
  }
  return score * a.scale;
}

/// Writes to the lines of a warp's rows, of which there are `own`, sums of numbers that have the same row of the
/// table. Numbers are a lane's each, of the `count` others of a tile: those of one row lie side by side, and
/// whoever has the first adds them up.
/// @param numbers  in shared memory, of 32 lanes, and behind them room for sums that go on in the next tile
/// @param is_first  of the tile
/// @param row_of  (i, k) -> of the warp's row i and the tile's other k; k is -1 for the last of the tile before
template <class T, class RowOf>
MEZZO_DEVICE void put_sums_of_rows(const Block& block,
                                   OfOwn* numbers,
                                   int count,
                                   bool is_first,
                                   float scale,
                                   const Lines<T>& lines,
                                   int first_own,
                                   int own,
                                   const RowOf& row_of) {
  const int lane = block.thread() % kWarp;
  const OfOwn before = numbers[kWarp];
  block.sync_warp();
  for (int i = 0; i < kOwn; ++i) {
    if (i >= own || lane >= count) {
      continue;
    }
    const int row = row_of(i, lane);
    const bool goes_on = (lane > 0 || !is_first) && row_of(i, lane - 1) == row;
    if (goes_on && lane > 0) {
      continue;
    }
    float sum = goes_on ? before.at[i] : 0;
    int k = lane;
    do {
      sum += numbers[k].at[i];
    } while (++k < count && row_of(i, k) == row);
    if (k == count) {
      numbers[kWarp].at[i] = sum;
    }
    *lines.at(first_own + i, row) = from_float<T>(sum * scale);
  }
}

}  // namespace mezzo::encoder::MEZZO_CUDA
