#pragma once

#include <cstdint>

#include "encoder/cuda/mask.h"
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/chunks.h"

/// How the row-wise kernels take rows: a thread four columns at a time.
namespace mezzo::encoder::MEZZO_CUDA {

using namespace kernels::MEZZO_CUDA;  // the thin layer, elements

/// Of a block that is one of several of a row.
constexpr int kTileThreads = 128;
constexpr int64_t kTileColumns = 4 * kTileThreads;

struct Place {
  int64_t part, column;
};

/// Where a thread begins: of rows, or parts of them, that take ceil(columns / kTileColumns) blocks
/// each. In 32 bits, which blocks are counted in: a GPU takes long to divide 64.
MEZZO_DEVICE Place place_of(const Block& block, int64_t columns) {
  const auto number = static_cast<uint32_t>(block.index()),
             tiles = static_cast<uint32_t>(ceil_div(columns, kTileColumns));
  return {number / tiles, number % tiles * kTileColumns + 4 * block.thread()};
}

/// A grid of such blocks.
inline Grid tiles_of(int64_t parts, int64_t columns) { return {parts * ceil_div(columns, kTileColumns), kTileThreads}; }

/// Calls `body(c)` at every fourth column; each thread of a block takes its own.
template <class Body>
MEZZO_DEVICE void for_columns(const Block& block, int64_t columns, const Body& body) {
  for (int64_t c = 4 * block.thread(); c < columns; c += 4 * block.threads()) {
    body(c);
  }
}

/// Calls `use(c, load(c))` at every fourth column; each lane of a warp takes its own, of which kAtOnce are on their way
/// at a time.
template <int kAtOnce, class Load, class Use>
MEZZO_DEVICE void for_columns_of_warp(const Block& block, int64_t columns, const Load& load, const Use& use) {
  constexpr int kStep = 4 * kWarp;
  MEZZO_ROLLED
  for (int64_t c = 4 * (block.thread() % kWarp); c < columns; c += kAtOnce * kStep) {
    decltype(load(c)) loaded[kAtOnce];
    MEZZO_UNROLLED
    for (int i = 0; i < kAtOnce; ++i) {
      if (c + i * kStep < columns) {
        loaded[i] = load(c + i * kStep);
      }
    }
    MEZZO_UNROLLED
    for (int i = 0; i < kAtOnce; ++i) {
      if (c + i * kStep < columns) {
        use(c + i * kStep, loaded[i]);
      }
    }
  }
}

/// Elements behind the last column stay out of sums.
MEZZO_DEVICE bool counts(int64_t column, int i, int64_t columns) { return column + i < columns; }

/// Factors of elements `first` to `first + 3`, which two Philox blocks decide where
/// rows are not a multiple of four. Ones where nothing is dropped.
/// @tparam kWhole  whether rows are such a multiple
template <bool kWhole = false>
MEZZO_DEVICE Four mask_four(const Mask& mask, int64_t first) {
  if (mask.threshold == 0) {
    return {{1, 1, 1, 1}};
  }
  Four four;
  mask_factors(mask, first / 4, four.at);
  if (const auto skip = static_cast<int>(first % 4); !kWhole && skip != 0) {
    float next[4];
    mask_factors(mask, first / 4 + 1, next);
    MEZZO_ROLLED
    for (int shift = 0; shift < skip; ++shift) {
      four = {{four.at[1], four.at[2], four.at[3], next[0]}};
      next[0] = next[1];
      next[1] = next[2];
      next[2] = next[3];
    }
  }
  return four;
}

/// The row of the mask that a row has.
MEZZO_DEVICE int64_t mask_row(const int64_t* row_numbers, int64_t row) {
  return row_numbers != nullptr ? row_numbers[row] : row;
}

/// A dropped element is 0 whatever it was.
MEZZO_DEVICE float masked(float x, float factor) { return factor == 0 ? 0.0f : x * factor; }

}  // namespace mezzo::encoder::MEZZO_CUDA
