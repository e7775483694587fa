#pragma once

#include <cstdint>
#include <type_traits>

#include "encoder/cuda/attention_launchers.h"
#include "encoder/cuda/attention_tiles.h"
#include "encoder/cuda/relative_scores.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"

/// A pass of the backward of packed attention over the rows of a head.
namespace mezzo::encoder::MEZZO_CUDA {

enum Which : int { kQuery, kKey, kValue };

struct CutBackward {
  PackedAttentionBackwardArguments of;
  Cut cut;  ///< of a head in one block: all rows are its own, and one tile
  int parts;
  int scratch;  ///< floats of a warp
  bool is_whole_head, are_chunks;

  int blocks() const { return is_whole_head ? 1 : 2 * parts; }  ///< of a head
};

/// Offsets in a block's shared memory, in bytes, from its beginning.
struct alignas(16) Places {
  HeadSources sources;
  int matrices[4];  ///< queries, their gradients, keys and values of a whole head; else two that are owned, two others
  int biases, log_sum_exp, products, scratches, kept;
  int part;
};

template <class T, int kColumns>
int shared_bytes(const CutBackward& b, const Cut& cut) {
  constexpr int kFloat = sizeof(float);
  return static_cast<int>(sizeof(Places)) + 2 * (cut.own() + cut.others()) * Rows<T, kColumns>::kBytes +
         (3 * kColumns + 2 * cut.most_rows() + cut.warps * b.scratch) * kFloat +
         cut.warps * (b.is_whole_head ? cut.warps : 1) * kWarp;
}

/// Of a row of gradients and one of outputs the product, in each of the four lanes of the row.
template <class T>
MEZZO_DEVICE float product_of(const Block& block, const T* grad, const T* output, int size, bool are_chunks) {
  constexpr int kAtOnce = 16 / static_cast<int>(sizeof(T));
  const int lane = block.thread() % 4;
  float sum = 0;
  MEZZO_ROLLED
  for (int c = lane * kAtOnce; are_chunks && c < size; c += 4 * kAtOnce) {
    const auto left = *reinterpret_cast<const Pack<T, kAtOnce>*>(grad + c),
               right = *reinterpret_cast<const Pack<T, kAtOnce>*>(output + c);
    for (int i = 0; i < kAtOnce; ++i) {
      sum = ::fmaf(to_float(left.at[i]), to_float(right.at[i]), sum);
    }
  }
  MEZZO_ROLLED
  for (int c = lane; !are_chunks && c < size; c += 4) {
    sum = ::fmaf(to_float(grad[c]), to_float(output[c]), sum);
  }
  return row_sum(block, sum);
}

template <class T>
MEZZO_DEVICE const T* row_in(const RowsSpan& rows, const Head& head, int row) {
  return static_cast<const T*>(rows.data) + (head.first_query + row) * rows.row_stride + head.column();
}

/// The part's sum of a bias's gradient, column by column.
MEZZO_DEVICE float* bias_sum(const CutBackward& b, const Head& head, int part, int which) {
  const int64_t row = static_cast<int64_t>(head.sequence) * b.parts + part;
  return b.of.bias_sums + (row * 3 + which) * head.hidden() + head.column();
}

template <class T, int kColumns>
MEZZO_DEVICE void set_places(const CutBackward& b, int part, Places& places) {
  constexpr int kFloat = sizeof(float);
  int next = sizeof(Places);
  const auto take = [&](int bytes) {
    next += bytes;
    return next - bytes;
  };
  for (int i = 0; i < 4; ++i) {
    places.matrices[i] = take((i < 2 ? b.cut.own() : b.cut.others()) * Rows<T, kColumns>::kBytes);
  }
  places.biases = take(3 * kColumns * kFloat);
  places.log_sum_exp = take(b.cut.most_rows() * kFloat);
  places.products = take(b.cut.most_rows() * kFloat);
  places.scratches = take(b.cut.warps * b.scratch * kFloat);
  places.kept = next;
  places.part = part;
}

/// A block's work on the rows that it owns, queries or keys, against the others.
/// @tparam kExtra  whether there are relative positions or a soft cap
template <class T, int kColumns, bool kExtra>
struct BackwardPass {
  /// Registers hold one matrix of sums then: values take a separate round.
  static constexpr bool kIsWide = kColumns > 128;
  using Matrix = Rows<T, kColumns>;
  using Sums = RowSums<kColumns>;

  const Block& block;
  const CutBackward& b;
  const Places& memory;
  bool by_keys = false, wants_scores = true, wants_values = false;

  MEZZO_DEVICE const Head& head() const { return memory.sources.head; }
  MEZZO_DEVICE int own_count() const { return by_keys ? head().count : head().queries; }
  MEZZO_DEVICE int others_count() const { return by_keys ? head().queries : head().count; }
  MEZZO_DEVICE bool are_swapped() const { return b.is_whole_head && by_keys; }
  MEZZO_DEVICE Matrix own() const { return matrix(are_swapped() ? 2 : 0); }
  MEZZO_DEVICE Matrix own_values() const { return matrix(are_swapped() ? 3 : 1); }
  MEZZO_DEVICE Matrix others() const { return matrix(are_swapped() ? 0 : 2); }
  MEZZO_DEVICE Matrix other_values() const { return matrix(are_swapped() ? 1 : 3); }
  MEZZO_DEVICE Matrix matrix(int i) const { return {block.template shared<T>(memory.matrices[i])}; }
  MEZZO_DEVICE float* biases() const { return block.template shared<float>(memory.biases); }
  MEZZO_DEVICE float* log_sum_exp() const { return block.template shared<float>(memory.log_sum_exp); }
  MEZZO_DEVICE float* products() const { return block.template shared<float>(memory.products); }
  MEZZO_DEVICE float* scratches() const { return block.template shared<float>(memory.scratches); }
  /// Which weights lanes keep, for each tile of a whole head, else of a warp.
  MEZZO_DEVICE uint8_t* kept() const { return block.template shared<uint8_t>(memory.kept); }
  MEZZO_DEVICE int first_own() const { return memory.part * b.cut.own(); }
  MEZZO_DEVICE float* scratch() const { return scratches() + block.warp() * b.scratch; }
  MEZZO_DEVICE RowsCopy<T, kColumns> copy() const { return {block, head(), b.are_chunks}; }
  MEZZO_DEVICE int lane() const { return block.thread() % kWarp; }

  /// Rows `first` ... of queries and of gradients, or of keys and of values.
  MEZZO_DEVICE void begin(bool keys, int first, int rows, const Matrix& left, const Matrix& right, int at) const {
    const int count = keys ? head().count : head().queries;
    copy().begin(keys ? memory.sources.key : memory.sources.query, first, count, rows, left.from(at));
    copy().begin(keys ? memory.sources.value : memory.sources.grad, first, count, rows, right.from(at));
    MEZZO_ROLLED
    for (int i = block.thread(); !keys && i < rows; i += block.threads()) {
      if (first + i >= count) {
        log_sum_exp()[at + i] = products()[at + i] = 0;
        continue;
      }
      const int64_t query = head().query(first + i);
      copy_async(log_sum_exp() + at + i, static_cast<const float*>(b.of.forward.log_sum_exp) + query);
      if (!b.is_whole_head) {
        copy_async(products() + at + i, static_cast<const float*>(b.of.products) + query);
      }
    }
  }
  MEZZO_DEVICE void finish(bool keys, int first, int rows, const Matrix& left, const Matrix& right, int at) const {
    const int count = keys ? head().count : head().queries;
    copy().finish(keys ? memory.sources.key : memory.sources.query, first, count, rows, left.from(at),
                  biases() + (keys ? kColumns : 0));
    copy().finish(keys ? memory.sources.value : memory.sources.grad, first, count, rows, right.from(at),
                  biases() + 2 * kColumns);
  }

  /// Of a whole head.
  MEZZO_DEVICE void compute_products() const {
    const Head& of = head();
    MEZZO_ROLLED
    for (int first = block.warp() * 8; first < padded(of.queries); first += block.threads() / 4) {
      const int row = first + lane() / 4;
      const float product = product_of<T>(block, own_values().at(row, 0), row_in<T>(b.of.forward.output, of, row),
                                          row < of.queries ? of.size : 0, b.are_chunks);
      if (lane() % 4 == 0) {
        products()[row] = product;
      }
    }
    block.sync();
  }

  MEZZO_DEVICE void run() const {
    const int row = block.warp() * kTile, end_own = smaller(first_own() + b.cut.own(), own_count());
    const Range met = b.is_whole_head ? Range{0, others_count()}
                      : by_keys       ? within_reach(first_own(), end_own, head().after, head().before, others_count())
                                      : within_reach(first_own(), end_own, head().before, head().after, others_count());
    Sums sums = {};
    RowSums<kIsWide ? 8 : kColumns> value_sums = {};
    RowSum row_sums;
    const int own_rows = padded(end_own - first_own());
    const auto rows_from = [&](int first) { return smaller(b.cut.tile, padded(met.end - first)); };
    const bool loads = !b.is_whole_head || !by_keys;
    if (loads) {
      begin(by_keys, first_own(), own_rows, own(), own_values(), 0);
    }
    for_tiles(
        block, met, b.cut,
        [&](int first, int stage) {
          if (loads) {
            begin(!by_keys, first, rows_from(first), others(), other_values(), stage * b.cut.tile);
          }
        },
        [&](int first, int stage) {
          if (loads && first == met.begin) {
            finish(by_keys, first_own(), own_rows, own(), own_values(), 0);
          }
          if (loads) {
            finish(!by_keys, first, rows_from(first), others(), other_values(), stage * b.cut.tile);
          }
        },
        [&](int first, int stage) {
          if (b.is_whole_head && !by_keys) {
            compute_products();
          }
          const int rows = rows_from(first), at = stage * b.cut.tile;
          MEZZO_ROLLED
          for (int other = 0; first_own() + row < own_count() && other < rows; other += kTile) {
            add_tile(row, first + other, at + other, sums, value_sums, row_sums);
          }
        });
    if constexpr (kExtra) {
      const Span& grads = by_keys ? b.of.grad_of_keys : b.of.grad_of_queries;
      row_sums.put(grads, line_of(first_own() + row + lane()));
    }
    if (wants_scores) {
      put(sums, by_keys ? kKey : kQuery);
    }
    if (wants_values) {
      if constexpr (kIsWide) {
        put(sums, kValue);
      } else {
        put(value_sums, kValue);
      }
    }
  }

  /// Of the warp's rows from `row` on and the others from `other` on, which lie from row `at` on.
  MEZZO_DEVICE void add_tile(
      int row, int other, int at, Sums& sums, RowSums<kIsWide ? 8 : kColumns>& value_sums, RowSum& row_sums) const {
    const PackedAttentionArguments& a = b.of.forward;
    const Head& of = head();
    const Mask& mask = memory.sources.mask;
    const int first = first_own() + row, query = by_keys ? other : first, key = by_keys ? first : other;
    if (of.are_apart(query, key)) {
      return;
    }
    const int size = of.size;
    // First, as it takes registers.
    const unsigned are_kept = mask.threshold == 0 ? kAll : kept_elements(query, key);
    SquareTile weights = product_of_rows(block, own(), row, others(), at, size), score_grads = {};
    if (wants_scores) {
      score_grads = product_of_rows(block, own_values(), row, other_values(), at, size);
    }
    const unsigned are_seen = visible_elements(of, lane(), query, key, by_keys);
    float shifts[4], subtrahends[4];  // of queries: of both rows, or of the columns of both tiles
    for (int j = 0; j < 4; ++j) {
      const int place = by_keys ? at + column_in_tile(lane(), j / 2, j % 2) : row + row_in_tile(lane(), j);
      shifts[j] = log_sum_exp()[place] * kLog2E;
      subtrahends[j] = products()[place];
    }
    for (int n = 0; n < 2; ++n) {
      for (int i = 0; i < 4; ++i) {
        float &weight = weights.at[n].at[i], &grad = score_grads.at[n].at[i], slope = 1;
        const float shift = by_keys ? shifts[2 * n + i % 2] : shifts[i],
                    subtrahend = by_keys ? subtrahends[2 * n + i % 2] : subtrahends[i];
        float exponential;
        if constexpr (kExtra) {
          const int q = by_keys ? query + column_in_tile(lane(), n, i) : query + row_in_tile(lane(), i),
                    k = by_keys ? key + row_in_tile(lane(), i) : key + column_in_tile(lane(), n, i);
          exponential =
              ::exp2f(extra_score(a, of, weight, smaller(q, of.queries - 1), smaller(k, of.count - 1), &slope) - shift);
        } else {
          exponential = ::exp2f(::fmaf(weight, a.rule.scale * kLog2E, -shift));
        }
        exponential = has(are_seen, n, i) ? exponential : 0;
        const float factor = has(are_kept, n, i) ? mask.scale : 0;
        weight = exponential * factor;
        grad = exponential * ::fmaf(grad, factor, -subtrahend) * slope;
      }
    }
    if (wants_scores) {
      sums.add(block, score_grads, others(), at, size);
    }
    if (wants_values) {
      if constexpr (kIsWide) {
        sums.add(block, weights, other_values(), at, size);
      } else {
        value_sums.add(block, weights, other_values(), at, size);
      }
    }
    if constexpr (kExtra) {
      const Span& grads = by_keys ? b.of.grad_of_keys : b.of.grad_of_queries;
      if (grads.data != nullptr && wants_scores) {
        add_row_sums(score_grads, first, other, grads, row_sums);
      }
    }
  }

  MEZZO_DEVICE unsigned kept_elements(int query, int key) const {
    const int tile = b.is_whole_head ? query / kTile * b.cut.warps + key / kTile : block.warp();
    uint8_t* const of_tile = kept() + tile * kWarp;
    unsigned elements = kAll;
    if (!by_keys || !b.is_whole_head) {
      elements = draw_kept(block, memory.sources.mask, head(), query, key);
      of_tile[lane()] = static_cast<uint8_t>(elements);
      block.sync_warp();
    }
    if (by_keys) {
      elements = transposed(of_tile, lane());
      block.sync_warp();
    }
    return elements;
  }

  MEZZO_DEVICE int64_t line_of(int row) const {
    return by_keys ? key_line(b.of.forward, head(), row) : query_line(b.of.forward, head(), row);
  }

  /// Sixteen lanes go over their rows of a tile, from its first column to its last.
  MEZZO_DEVICE void add_row_sums(
      const SquareTile& score_grads, int first, int other, const Span& grads, RowSum& row_sums) const {
    constexpr int kStride = kTile + 1;
    float* const tile = scratch();
    for (int n = 0; n < 2; ++n) {
      for (int i = 0; i < 4; ++i) {
        tile[row_in_tile(lane(), i) * kStride + column_in_tile(lane(), n, i)] =
            score_grads.at[n].at[i] * b.of.forward.rule.scale;
      }
    }
    block.sync_warp();
    const int mine = first + lane();
    if (lane() < kTile && mine < own_count()) {
      MEZZO_ROLLED
      for (int k = 0; k < kTile && other + k < others_count(); ++k) {
        const int distance = by_keys ? other + k - mine : mine - other - k;
        row_sums.add(row_of(b.of.forward.relative, distance), tile[lane() * kStride + k], grads, line_of(mine));
      }
    }
    block.sync_warp();
  }

  /// Turns the gradients of turned rows into gradients of the rows. The eight rows of a half at a time.
  MEZZO_DEVICE void turn_back(Sums& sums, int first, int count) const {
    const int size = head().size, half_size = size / 2;
    float* const line = scratch() + lane() / 4 * (kColumns + 8);
    MEZZO_UNROLLED
    for (int half = 0; half < 2; ++half) {
      MEZZO_UNROLLED
      for (int n = 0; n < kColumns / 8; ++n) {
        for (int i = 0; i < 2; ++i) {
          line[column_in_tile(lane(), n, i)] = sums.at[n].at[2 * half + i];
        }
      }
      block.sync_warp();
      const int row = first + lane() / 4 + 8 * half;
      const float* const angles = b.of.forward.rotary + static_cast<int64_t>(row) * size;
      MEZZO_UNROLLED
      for (int n = 0; n < kColumns / 8; ++n) {
        for (int i = 0; i < 2; ++i) {
          const int column = column_in_tile(lane(), n, i);
          if (row < count && column < size) {
            const int left = column < half_size ? column : column - half_size;
            const float other = column < half_size ? line[half_size + left] : -line[left];
            float& x = sums.at[n].at[2 * half + i];
            x = x * angles[left] + other * angles[half_size + left];
          }
        }
      }
      block.sync_warp();
    }
  }

  /// Writes the warps' gradients of their rows, and the sum over the rows.
  template <class OfSums>
  MEZZO_DEVICE void put(OfSums& sums, Which which) const {
    const PackedAttentionArguments& a = b.of.forward;
    const Head& of = head();
    const int first = first_own() + block.warp() * kTile, count = which == kQuery ? of.queries : of.count;
    const float factor = which == kValue ? 1 : a.rule.scale;
    MEZZO_UNROLLED
    for (int i = 0; i < kColumns / 2; ++i) {
      sums.at[i / 4].at[i % 4] *= factor;
    }
    if (a.rotary != nullptr && which != kValue) {
      turn_back(sums, first, count);
    }
    store_rows<T>(of, sums, {1, 1},
                  which == kQuery ? b.of.grad_query
                  : which == kKey ? b.of.grad_key
                                  : b.of.grad_value,
                  (which == kQuery ? of.first_query : of.first_row) + first, count - first, lane());
    if (b.of.bias_sums != nullptr) {
      put_bias_sum(sums, which);
    }
  }

  /// Of its sixteen rows a lane has two in each of its columns. Lanes of the same columns share them out, half at a
  /// time, until each has the whole sums of some. Rows behind the last one add zeros.
  MEZZO_DEVICE void put_bias_sum(const Sums& sums, Which which) const {
    constexpr int kOfLane = kColumns / 4;
    float of_columns[kOfLane];
    MEZZO_UNROLLED
    for (int k = 0; k < kOfLane; ++k) {
      of_columns[k] = sums.at[k / 2].at[k % 2] + sums.at[k / 2].at[k % 2 + 2];
    }
    int first_of_lane = 0;
    const auto share = [&]<class Half>(int other, Half) {
      constexpr int kHalf = Half::value;
      const bool is_upper = (lane() & other) != 0;
      MEZZO_UNROLLED
      for (int k = 0; k < kHalf; ++k) {
        const float given = is_upper ? of_columns[k] : of_columns[k + kHalf];
        of_columns[k] = (is_upper ? of_columns[k + kHalf] : of_columns[k]) + block.shuffle_xor(given, other);
      }
      first_of_lane += is_upper ? kHalf : 0;
    };
    share(16, std::integral_constant<int, kOfLane / 2>());
    share(8, std::integral_constant<int, kOfLane / 4>());
    share(4, std::integral_constant<int, kOfLane / 8>());
    float* const sums_of_warp = scratch();
    for (int k = 0; k < kOfLane / 8; ++k) {
      const int of = first_of_lane + k;
      sums_of_warp[column_in_tile(lane(), of / 2, of % 2)] = of_columns[k];
    }
    block.sync();
    float* const out = bias_sum(b, head(), memory.part, which);
    MEZZO_ROLLED
    for (int column = block.thread(); column < head().size; column += block.threads()) {
      float sum = 0;
      MEZZO_ROLLED
      for (int warp = 0; warp < b.cut.warps; ++warp) {
        sum += scratches()[warp * b.scratch + column];
      }
      out[column] = sum;
    }
    block.sync();  // before the scratch is written again
  }
};

}  // namespace mezzo::encoder::MEZZO_CUDA
