#pragma once

#include <cstdint>

#include "encoder/cuda/attention_launchers.h"
#include "encoder/cuda/attention_tiles.h"
#include "encoder/cuda/mask.h"
#include "encoder/cuda/tensor_cores.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/elements.h"

/// What the kernels of attention by tensor cores share: a head's rows in shared memory, tiles of sixteen rows by
/// sixteen others, and which weights of them there are and are kept.
namespace mezzo::encoder::MEZZO_CUDA {

constexpr int kTile = 16;
constexpr int kMostRows = kMostWarps * kTile;

/// Two neighbouring right tiles, of 16 columns together.
template <class T>
struct RightTiles {
  Pair<T> at[4];
  MEZZO_DEVICE RightTile<T> tile(int n) const { return {{at[2 * n], at[2 * n + 1]}}; }
};

/// Rows of a head in shared memory. Eight elements behind each row let lanes that read one column of
/// eight rows meet in no bank.
template <class T, int kColumns>
class HalfRows {
 public:
  static constexpr int kStride = kColumns + 8;
  static constexpr int kBytes = kStride * static_cast<int>(sizeof(T));  ///< of a row

  T* data;

  /// Rows `row` ... and columns `column` ..., sixteen each, here and below.
  MEZZO_DEVICE LeftTile<T> left(int lane, int row, int column) const {
    LeftTile<T> tile;
    load_matrices<false>(lane, tile.at, [&](int i) { return at(row + i % 16, column + i / 16 * 8); });
    return tile;
  }
  /// Rows as columns: what a product with these rows' transpose takes.
  MEZZO_DEVICE RightTiles<T> right_transposed(int lane, int row, int column) const {
    RightTiles<T> tiles;
    load_matrices<false>(lane, tiles.at, [&](int i) { return at(row + i / 16 * 8 + i % 8, column + i / 8 % 2 * 8); });
    return tiles;
  }
  MEZZO_DEVICE RightTiles<T> right(int lane, int row, int column) const {
    RightTiles<T> tiles;
    load_matrices<true>(lane, tiles.at, [&](int i) { return at(row + i % 16, column + i / 16 * 8); });
    return tiles;
  }

 private:
  MEZZO_DEVICE const T* at(int row, int column) const { return data + row * kStride + column; }
};

template <class T, int kColumns>
MEZZO_DEVICE HalfRows<T, kColumns> take_rows(unsigned char*& shared, int rows) {
  const HalfRows<T, kColumns> taken{reinterpret_cast<T*>(shared)};
  shared += rows * HalfRows<T, kColumns>::kBytes;
  return taken;
}

MEZZO_DEVICE float* take_floats(unsigned char*& shared, int count) {
  auto* const taken = reinterpret_cast<float*>(shared);
  shared += count * static_cast<int>(sizeof(float));
  return taken;
}

/// Up to a tile's end.
MEZZO_DEVICE constexpr int padded(int rows) { return (rows + kTile - 1) / kTile * kTile; }

template <class T>
MEZZO_COLD Pack<T, 8> load_eight_singly(const T* from) {
  Pack<T, 8> eight;
  for (int i = 0; i < 8; ++i) {
    eight.at[i] = from[i];
  }
  return eight;
}

/// Eight elements of a row, at once where they are aligned.
template <class T>
MEZZO_DEVICE Pack<T, 8> load_eight(const T* from) {
  return reinterpret_cast<uintptr_t>(from) % sizeof(Pack<T, 8>) == 0 ? *reinterpret_cast<const Pack<T, 8>*>(from)
                                                                     : load_eight_singly(from);
}

/// Copies `count` rows of a head from each of `kMatrices` matrices, with zeros behind them up to a tile's end.
/// @param others, products  if there are: what the last matrix's rows are multiplied by, and the results
template <class T, int kColumns, int kMatrices>
MEZZO_DEVICE void copy_rows(const Block& block,
                            const Head& head,
                            const Source (&from)[kMatrices],
                            const HalfRows<T, kColumns> (&to)[kMatrices],
                            int count,
                            const RowsSpan& others = {},
                            float* products = nullptr) {
  constexpr int kEights = kColumns / 8;
  const int column = 8 * (block.thread() % kEights), step = block.threads() / kEights;
  Four bias[kMatrices][2];
  MEZZO_UNROLLED
  for (int m = 0; m < kMatrices; ++m) {
    for (int half = 0; half < 2; ++half) {
      const int64_t first = head.column() + column + 4 * half;
      bias[m][half] = load_bias(from[m].bias, from[m].rows.element, first, first + 4);
    }
  }
  MEZZO_ROLLED
  for (int row = block.thread() / kEights; row < padded(count); row += step) {
    Pack<T, 8> eights[kMatrices];
    for (int m = 0; m < kMatrices; ++m) {  // all on their way before one is written
      const T* const rows = static_cast<const T*>(from[m].rows.data);
      eights[m] = row < count
                      ? load_eight(rows + (from[m].first_row + row) * from[m].rows.row_stride + head.column() + column)
                      : Pack<T, 8>{};
    }
    for (int m = 0; m < kMatrices; ++m) {
      if (from[m].bias.data != nullptr && row < count) {
        for (int i = 0; i < 8; ++i) {
          eights[m].at[i] = from_float<T>(to_float(eights[m].at[i]) + bias[m][i / 4].at[i % 4]);
        }
      }
      *reinterpret_cast<Pack<T, 8>*>(to[m].data + row * HalfRows<T, kColumns>::kStride + column) = eights[m];
    }
    if (products != nullptr) {
      const auto other =
          row < count ? load_eight(static_cast<const T*>(others.data) +
                                   (from[kMatrices - 1].first_row + row) * others.row_stride + head.column() + column)
                      : Pack<T, 8>{};
      float sum = 0;
      for (int i = 0; i < 8; ++i) {
        sum = ::fmaf(to_float(eights[kMatrices - 1].at[i]), to_float(other.at[i]), sum);
      }
      for (int lanes = kEights / 2; lanes > 0; lanes /= 2) {  // of this row: a warp has whole rows
        sum += block.shuffle_xor(sum, lanes);
      }
      if (column == 0) {
        products[row] = sum;
      }
    }
  }
}

/// Two neighbouring tiles of sums: sixteen rows by sixteen columns.
struct SquareTile {
  SumTile at[2];
};

/// Rows of `left` from `row` on times the transposed ones of `right` from `column` on.
template <class T, int kColumns>
MEZZO_DEVICE SquareTile product_of_rows(
    const Block& block, const HalfRows<T, kColumns>& left, int row, const HalfRows<T, kColumns>& right, int column) {
  const int lane = block.thread() % kWarp;
  SquareTile sums = {};
  for (int k = 0; k < kColumns; k += kTile) {
    const auto factor = left.left(lane, row, k);
    const auto factors = right.right_transposed(lane, column, k);
    for (int n = 0; n < 2; ++n) {
      multiply_add(block, sums.at[n], factor, factors.tile(n));
    }
  }
  return sums;
}

/// As a factor, rounded.
template <class T>
MEZZO_DEVICE LeftTile<T> left_of(const SquareTile& sums) {
  LeftTile<T> left;
  for (int i = 0; i < 4; ++i) {
    const float* const two = sums.at[i / 2].at + 2 * (i % 2);
    left.at[i] = {{from_float<T>(two[0]), from_float<T>(two[1])}};
  }
  return left;
}

/// Sixteen rows of a head's columns.
template <int kColumns>
struct RowSums {
  SumTile at[kColumns / 8];

  /// Adds `left` times sixteen rows from `row` on.
  template <class T>
  MEZZO_DEVICE void add(const Block& block, const LeftTile<T>& left, const HalfRows<T, kColumns>& right, int row) {
    for (int two = 0; two < kColumns / 8; two += 2) {
      const auto factors = right.right(block.thread() % kWarp, row, 8 * two);
      for (int n = 0; n < 2; ++n) {
        multiply_add(block, at[two + n], left, factors.tile(n));
      }
    }
  }
};

/// What element `i` of a lane's square tile is of: row lane / 4 + 8 (i / 2), column 2 (lane % 4) + i % 2, of tile n
/// 8 columns on.
MEZZO_DEVICE int row_in_tile(int lane, int i) { return lane / 4 + 8 * (i / 2); }
MEZZO_DEVICE int column_in_tile(int lane, int n, int i) { return 8 * n + 2 * (lane % 4) + i % 2; }

constexpr unsigned kAll = 0xFF;  ///< of a lane's elements: bit 4 n + i of element i of tile n
MEZZO_DEVICE bool has(unsigned elements, int n, int i) { return (elements >> (4 * n + i) & 1U) != 0; }

/// Which weights of queries `first_query` ... and keys `first_key` ... are kept. A lane draws two Philox blocks, of
/// four keys of a query each; the others of its group have theirs by two shuffles.
MEZZO_DEVICE unsigned draw_kept(
    const Block& block, const Mask& mask, const Head& head, int first_query, int first_key) {
  const int lane = block.thread() % kWarp, mine = lane % 4, query = first_query + lane / 4;
  const auto key_block = static_cast<uint32_t>(first_key / 4 + mine);
  unsigned drawn = (kept_words(mask, key_block, head.mask_number(query)) |
                    kept_words(mask, key_block, head.mask_number(query + 8)) << 4)
                   << 8 * mine;
  drawn |= block.shuffle_xor(drawn, 1);
  drawn |= block.shuffle_xor(drawn, 2);
  unsigned kept = 0;
  for (int n = 0; n < 2; ++n) {
    for (int i = 0; i < 4; ++i) {
      const int key = column_in_tile(lane, n, i);
      kept |= (drawn >> (8 * (key / 4) + 4 * (i / 2) + key % 4) & 1U) << (4 * n + i);
    }
  }
  return kept;
}

/// Those of a tile that is transposed, from what its lanes have of it as it was.
MEZZO_DEVICE unsigned transposed(const uint8_t* of_lanes, int lane) {
  const int g = lane / 4, t = lane % 4;
  const unsigned even = of_lanes[8 * t + g / 2], odd = of_lanes[8 * t + 4 + g / 2];
  unsigned elements = 0;
  for (int n = 0; n < 2; ++n) {
    for (int i = 0; i < 4; ++i) {
      elements |= ((i % 2 == 0 ? even : odd) >> (4 * (i / 2) + 2 * n + g % 2) & 1U) << (4 * n + i);
    }
  }
  return elements;
}

/// Which elements are weights: of rows and columns that are there, and near enough to see each other.
MEZZO_DEVICE unsigned weights_of_tile(
    const PackedAttentionArguments& a, const Head& head, int lane, int row, int column) {
  if (row + kTile <= head.count && column + kTile <= head.count && head.count <= a.window) {
    return kAll;
  }
  unsigned elements = 0;
  for (int n = 0; n < 2; ++n) {
    for (int i = 0; i < 4; ++i) {
      const int r = row + row_in_tile(lane, i), c = column + column_in_tile(lane, n, i);
      elements |= (r < head.count && c < head.count && sees(a.window, r, c) ? 1U : 0U) << (4 * n + i);
    }
  }
  return elements;
}

/// Whether none of sixteen rows sees one of sixteen others, by a window.
MEZZO_DEVICE bool are_apart(int window, int first, int other) {
  return other >= first + kTile + window || first >= other + kTile + window;
}

constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;  // scores are kept as powers of two

/// Of a number that the lanes of a row have, in each of them.
MEZZO_DEVICE float row_sum(const Block& block, float value) {
  value += block.shuffle_xor(value, 1);
  return value + block.shuffle_xor(value, 2);
}
MEZZO_DEVICE float row_max(const Block& block, float value) {
  value = ::fmaxf(value, block.shuffle_xor(value, 1));
  return ::fmaxf(value, block.shuffle_xor(value, 2));
}

/// Writes the lane's part of sixteen rows times `factor` of each, of which `count` are there.
template <class T, int kColumns>
MEZZO_DEVICE void store_rows(const Head& head,
                             const RowSums<kColumns>& sums,
                             const float (&factors)[2],
                             const RowsSpan& to,
                             int64_t first_row,
                             int count,
                             int lane) {
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + 8 * half;
    if (row >= count) {
      continue;
    }
    T* const out = static_cast<T*>(to.data) + (first_row + row) * to.row_stride + head.column() + 2 * (lane % 4);
    const bool is_aligned = reinterpret_cast<uintptr_t>(out) % sizeof(Pair<T>) == 0;
    for (int n = 0; n < kColumns / 8; ++n) {
      const float* const two = sums.at[n].at + 2 * half;
      const Pair<T> pair{{from_float<T>(two[0] * factors[half]), from_float<T>(two[1] * factors[half])}};
      if (is_aligned) {
        *reinterpret_cast<Pair<T>*>(out + 8 * n) = pair;
      } else {
        out[8 * n] = pair.at[0];
        out[8 * n + 1] = pair.at[1];
      }
    }
  }
}

}  // namespace mezzo::encoder::MEZZO_CUDA
