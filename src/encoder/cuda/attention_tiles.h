#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "encoder/cuda/attention_rows.h"
#include "encoder/cuda/mask.h"
#include "encoder/cuda/tensor_cores.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"

/// What forward and backward of packed attention share. A warp computes sixteen rows of a head, its own, against tiles
/// of sixteen other rows of it. Half types are multiplied by tensor cores, float32 one by one.
namespace mezzo::encoder::MEZZO_CUDA {

/// How a launch cuts heads: warps of a block, rows of a tile, and tiles that are there at once.
struct Cut {
  int warps, tile, stages;
  MEZZO_DEVICE constexpr int own() const { return warps * kTile; }
  MEZZO_DEVICE constexpr int others() const { return tile * stages; }
  MEZZO_DEVICE constexpr int most_rows() const { return own() > others() ? own() : others(); }
};

/// Shared memory that a block has on every GPU from compute capability 7.5 on.
constexpr int kSharedBytes = 64 * 1024;

/// The largest one for `own` rows against `others` whose `bytes(cut)` fit into shared memory.
template <class Bytes>
Cut largest_cut(int own, int others, int most_warps, const Bytes& bytes) {
  const int warps = smaller(padded(own) / kTile, most_warps);
  Cut cut{};
  for (const Cut& most : {Cut{8, 64, 2}, {8, 32, 2}, {4, 32, 2}, {4, 16, 2}, {2, 16, 2}, {2, 16, 1}, {1, 16, 1}}) {
    cut = {smaller(warps, most.warps), smaller(padded(others), most.tile), 1};
    cut.stages = cut.tile < others ? most.stages : 1;
    if (bytes(cut) <= kSharedBytes) {
      break;
    }
  }
  return cut;
}

/// Calls `compute(first, stage)` for the tiles of `range`, which lie in shared memory then.
/// @param begin, finish  as RowsCopy has them, of (first, stage); all threads of the block call all three
template <class Begin, class Finish, class Compute>
MEZZO_DEVICE void for_tiles(const Block& block,
                            const Range& range,
                            const Cut& cut,
                            const Begin& begin,
                            const Finish& finish,
                            const Compute& compute) {
  if (range.begin >= range.end) {
    return;
  }
  begin(range.begin, 0);
  commit_copies();
  block.sync();  // earlier loads have arrived
  int stage = 0;
  MEZZO_ROLLED
  for (int first = range.begin; first < range.end; first += cut.tile) {
    const bool is_last = first + cut.tile >= range.end;
    if (cut.stages > 1 && !is_last) {
      begin(first + cut.tile, 1 - stage);
      commit_copies();
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    finish(first, stage);
    block.sync();
    compute(first, stage);
    block.sync();
    if (cut.stages == 1 && !is_last) {
      begin(first + cut.tile, 0);
      commit_copies();
    }
    stage = cut.stages - 1 - stage;
  }
}

/// Two neighbouring tiles of sums: sixteen rows by sixteen columns. Element i of a lane's tile n is in row lane / 4 + 8
/// (i / 2). Its column is 8 n + 2 (lane % 4) + i % 2.
struct SquareTile {
  SumTile at[2];
};
MEZZO_DEVICE int row_in_tile(int lane, int i) { return lane / 4 + 8 * (i / 2); }
MEZZO_DEVICE int column_in_tile(int lane, int n, int i) { return 8 * n + 2 * (lane % 4) + i % 2; }

/// Rows of `left` from `row` on times the transposed ones of `right` from `column` on, of `size` columns.
template <class T, int kColumns>
MEZZO_DEVICE SquareTile product_of_rows(
    const Block& block, const Rows<T, kColumns>& left, int row, const Rows<T, kColumns>& right, int column, int size) {
  const int lane = block.thread() % kWarp;
  SquareTile sums = {};
  if constexpr (std::is_same_v<T, float>) {
    MEZZO_ROLLED
    for (int k = 0; k < size; k += 4) {
      const Pack<float, 4> lefts[2] = {*left.chunk(row + lane / 4, k), *left.chunk(row + lane / 4 + 8, k)};
      for (int n = 0; n < 2; ++n) {
        for (int i = 0; i < 2; ++i) {
          const Pack<float, 4> other = *right.chunk(column + column_in_tile(lane, n, i), k);
          for (int half = 0; half < 2; ++half) {
            float& sum = sums.at[n].at[2 * half + i];
            for (int e = 0; e < 4; ++e) {
              sum = ::fmaf(lefts[half].at[e], other.at[e], sum);
            }
          }
        }
      }
    }
  } else {
    MEZZO_UNROLLED
    for (int k = 0; k < kColumns; k += kTile) {
      if (k < size) {
        const auto factor = left.left(lane, row, k);
        const auto factors = right.right_transposed(lane, column, k);
        for (int n = 0; n < 2; ++n) {
          multiply_add(block, sums.at[n], factor, factors.tile(n));
        }
      }
    }
  }
  return sums;
}

/// Sixteen rows of a head's columns, tile by tile of 8 columns.
template <int kColumns>
struct RowSums {
  SumTile at[kColumns / 8];

  /// Adds `left`, rounded to T, times sixteen rows from `row` on, of `size` columns.
  template <class T>
  MEZZO_DEVICE void add(const Block& block, const SquareTile& left, const Rows<T, kColumns>& right, int row, int size) {
    const int lane = block.thread() % kWarp;
    if constexpr (std::is_same_v<T, float>) {
      MEZZO_UNROLLED
      for (int n = 0; n < 2; ++n) {
        MEZZO_ROLLED
        for (int source = 0; source < 4; ++source) {  // lane of the four that have a row's factors
          float factors[4];
          for (int i = 0; i < 4; ++i) {
            factors[i] = block.shuffle_xor(left.at[n].at[i], lane % 4 ^ source);
          }
          const float *const even = right.at(row + 8 * n + 2 * source, 2 * (lane % 4)), *const odd =
                                                                                            even + right.kStride;
          MEZZO_UNROLLED
          for (int c = 0; c < kColumns / 8; ++c) {
            if (8 * c < size) {
              const auto evens = *reinterpret_cast<const Pair<float>*>(even + 8 * c),
                         odds = *reinterpret_cast<const Pair<float>*>(odd + 8 * c);
              for (int i = 0; i < 4; ++i) {
                at[c].at[i] = ::fmaf(factors[i / 2 * 2 + 1], odds.at[i % 2],
                                     ::fmaf(factors[i / 2 * 2], evens.at[i % 2], at[c].at[i]));
              }
            }
          }
        }
      }
    } else {
      LeftTile<T> factor;
      for (int i = 0; i < 4; ++i) {
        const float* const two = left.at[i / 2].at + 2 * (i % 2);
        factor.at[i] = {{from_float<T>(two[0]), from_float<T>(two[1])}};
      }
      MEZZO_UNROLLED
      for (int two = 0; two < kColumns / 8; two += 2) {
        if (8 * two < size) {
          const auto factors = right.right(lane, row, 8 * two);
          for (int n = 0; n < 2; ++n) {
            multiply_add(block, at[two + n], factor, factors.tile(n));
          }
        }
      }
    }
  }
};

constexpr unsigned kAll = 0xFF;  ///< of a lane's elements: bit 4 n + i of element i of tile n
MEZZO_DEVICE bool has(unsigned elements, int n, int i) { return (elements >> (4 * n + i) & 1U) != 0; }

/// Which elements are weights of keys that their queries see.
/// @param by_keys  whether keys are rows of the tile
MEZZO_DEVICE unsigned visible_elements(const Head& head, int lane, int query, int key, bool by_keys) {
  if (query + kTile <= head.queries && key + kTile <= head.count && query + kTile - 1 - key <= head.before &&
      key + kTile - 1 - query <= head.after) {
    return kAll;
  }
  unsigned elements = 0;
  for (int n = 0; n < 2; ++n) {
    for (int i = 0; i < 4; ++i) {
      const int row = row_in_tile(lane, i), column = column_in_tile(lane, n, i);
      const int q = query + (by_keys ? column : row), k = key + (by_keys ? row : column);
      const bool is_seen = q < head.queries && k < head.count && q - k <= head.before && k - q <= head.after;
      elements |= (is_seen ? 1U : 0U) << (4 * n + i);
    }
  }
  return elements;
}

/// Bit w says whether word w of the Philox block lets its weight be.
MEZZO_DEVICE unsigned kept_words(const Mask& mask, uint32_t low, uint32_t high) {
  const auto words = mask_words(mask, low, high);
  unsigned kept = 0;
  for (unsigned w = 0; w < 4; ++w) {
    kept |= (words[w] < mask.threshold ? 0U : 1U) << w;
  }
  return kept;
}

/// Which weights are kept, of queries as rows and keys as columns. A lane draws two Philox blocks, of four keys of a
/// query each; the others of its group have theirs by two shuffles.
MEZZO_DEVICE unsigned draw_kept(
    const Block& block, const Mask& mask, const Head& head, int first_query, int first_key) {
  const int lane = block.thread() % kWarp, mine = lane % 4;
  const auto key_block = static_cast<uint32_t>(first_key / 4 + mine);
  const auto number = static_cast<uint32_t>((head.first_row + first_query + lane / 4) * head.heads + head.number);
  unsigned drawn = (kept_words(mask, key_block, number) |
                    kept_words(mask, key_block, number + static_cast<uint32_t>(8 * head.heads)) << 4)
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
  MEZZO_UNROLLED
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + 8 * half;
    if (row >= count) {
      continue;
    }
    T* const out = static_cast<T*>(to.data) + (first_row + row) * to.row_stride + head.column() + 2 * (lane % 4);
    const bool is_aligned = reinterpret_cast<uintptr_t>(out) % sizeof(Pair<T>) == 0;
    MEZZO_UNROLLED
    for (int n = 0; n < kColumns / 8; ++n) {
      const int left = head.size - 8 * n - 2 * (lane % 4);
      if (left > 0) {
        const float* const two = sums.at[n].at + 2 * half;
        const Pair<T> pair{{from_float<T>(two[0] * factors[half]), from_float<T>(two[1] * factors[half])}};
        if (is_aligned && left > 1) {
          *reinterpret_cast<Pair<T>*>(out + 8 * n) = pair;
        } else {
          out[8 * n] = pair.at[0];
          if (left > 1) {
            out[8 * n + 1] = pair.at[1];
          }
        }
      }
    }
  }
}

/// Calls `body` with the dtype, the number of columns that a head has at most, and whether there are relative positions
/// or a soft cap, as constants. There are fewer numbers then, which nvcc takes long to compile.
template <class Body>
void with_kind(const PackedAttentionArguments& a, const Body& body) {
  const auto size = a.rule.head_size;
  with_type(a.query.element, [&]<class T>(T type) {
    constexpr std::integral_constant<int, 64> k64;
    constexpr std::integral_constant<int, kLargestHead> kLargest;
    if (a.relative.rows != nullptr || a.rule.soft_cap > 0) {
      size <= 64 ? body(type, k64, std::true_type()) : body(type, kLargest, std::true_type());
    } else if (size <= 32) {
      body(type, std::integral_constant<int, 32>(), std::false_type());
    } else if (size <= 64) {
      body(type, k64, std::false_type());
    } else if (size <= 128) {
      body(type, std::integral_constant<int, 128>(), std::false_type());
    } else {
      body(type, kLargest, std::false_type());
    }
  });
}

}  // namespace mezzo::encoder::MEZZO_CUDA
