#include <atomic>

#include "encoder/cuda/attention_launchers.h"
#include "encoder/cuda/attention_tiles.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/tensor_cores.h"

// Attention in half precision by tensor cores. A block has a head to itself, whose rows all lie in shared memory as
// matrices hold them, biases added; a warp computes sixteen of them against tiles of sixteen others. Weights, and
// gradients of scores, are rounded where they are factors of a product. Backward goes by queries, then by keys, each a
// warp's own; so no sum has two writers, and the result is always the same.

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

constexpr int kTile = 16;
constexpr int kMostRows = kMostWarps * kTile;

/// Rows of a head in shared memory. Eight elements behind each row let lanes that read one column of
/// eight rows meet in no bank.
template <class T, int kColumns>
struct HalfRows {
  static constexpr int kStride = kColumns + 8;
  static constexpr int kBytes = kStride * static_cast<int>(sizeof(T));  ///< of a row

  T* data;

  MEZZO_DEVICE Pair<T> pair(int row, int column) const {
    return *reinterpret_cast<const Pair<T>*>(data + row * kStride + column);
  }
  MEZZO_DEVICE T at(int row, int column) const { return data[row * kStride + column]; }

  /// Rows `row` ... and columns `column` ...
  MEZZO_DEVICE LeftTile<T> left(int lane, int row, int column) const {
    const int g = row + lane / 4, t = column + 2 * (lane % 4);
    return {{pair(g, t), pair(g + 8, t), pair(g, t + 8), pair(g + 8, t + 8)}};
  }
  /// Rows `row` ... as columns: what a product with these rows' transpose takes.
  MEZZO_DEVICE RightTile<T> right_transposed(int lane, int row, int column) const {
    const int g = row + lane / 4, t = column + 2 * (lane % 4);
    return {{pair(g, t), pair(g, t + 8)}};
  }
  MEZZO_DEVICE RightTile<T> right(int lane, int row, int column) const {
    const int g = column + lane / 4, t = row + 2 * (lane % 4);
    return {{{{at(t, g), at(t + 1, g)}}, {{at(t + 8, g), at(t + 9, g)}}}};
  }
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
    for (int n = 0; n < 2; ++n) {
      multiply_add(block, sums.at[n], factor, right.right_transposed(lane, column + 8 * n, k));
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
    for (int n = 0; n < kColumns / 8; ++n) {
      multiply_add(block, at[n], left, right.right(block.thread() % kWarp, row, 8 * n));
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
    for (int n = 0; n < kColumns / 8; ++n) {
      for (int i = 0; i < 2; ++i) {
        out[8 * n + i] = from_float<T>(sums.at[n].at[2 * half + i] * factors[half]);
      }
    }
  }
}

/// Softmax tile by tile. A head reads 3 n rows and writes n.
template <class T, int kColumns>
struct HalfAttention {
  static constexpr int kMostThreads = kMostWarps * kWarp, kBlocksAtOnce = 2;

  template <class Memory>
  static void uses(Memory& memory, const PackedAttentionArguments& a) {
    reads_inputs(memory, a);
    memory.writes(a.output, num_weights(a) * a.head_size);
    memory.writes(a.log_sum_exp, num_weights(a));
  }

  MEZZO_DEVICE static void run(const Block& block, const PackedAttentionArguments& a) {
    const Head head = head_of(a, block.index());
    clear_rows_of_none(block, a.output, head.column(), head.size, a.sequences, head.sequence);
    auto* shared = block.shared<unsigned char>();
    const int rows = padded(head.count);
    const auto queries = take_rows<T, kColumns>(shared, rows), keys = take_rows<T, kColumns>(shared, rows),
               values = take_rows<T, kColumns>(shared, rows);
    copy_rows<T, kColumns, 3>(block, head, {queries_of(a, head), keys_of(a, head), values_of(a, head)},
                              {queries, keys, values}, head.count);
    block.sync();
    const int lane = block.thread() % kWarp, first = block.warp() * kTile;
    if (first >= head.count) {
      return;
    }
    const Mask mask = with_its_step(a.mask);
    const float scale = a.scale * kLog2E;
    float most[2] = {-kInfinity, -kInfinity}, total[2] = {};
    RowSums<kColumns> sums = {};
    MEZZO_ROLLED
    for (int key = 0; key < rows; key += kTile) {
      if (are_apart(a.window, first, key)) {
        continue;
      }
      SquareTile weights = product_of_rows(block, queries, first, keys, key);
      const unsigned kept = mask.threshold == 0 ? kAll : draw_kept(block, mask, head, first, key);
      const unsigned are_weights = weights_of_tile(a, head, lane, first, key);
      float larger[2] = {most[0], most[1]};
      for (int n = 0; n < 2; ++n) {
        for (int i = 0; i < 4; ++i) {
          weights.at[n].at[i] = has(are_weights, n, i) ? weights.at[n].at[i] * scale : -kInfinity;
          larger[i / 2] = ::fmaxf(larger[i / 2], weights.at[n].at[i]);
        }
      }
      float shift[2], shrink[2];
      for (int half = 0; half < 2; ++half) {
        larger[half] = row_max(block, larger[half]);
        shift[half] = larger[half] == -kInfinity ? 0 : larger[half];  // of a query that has seen no key so far
        shrink[half] = ::exp2f(most[half] - shift[half]);
        most[half] = larger[half];
        total[half] *= shrink[half];
      }
      for (int n = 0; n < 2; ++n) {
        for (int i = 0; i < 4; ++i) {
          const float weight = ::exp2f(weights.at[n].at[i] - shift[i / 2]);
          total[i / 2] += weight;
          weights.at[n].at[i] = has(kept, n, i) ? weight : 0;
        }
      }
      for (SumTile& tile : sums.at) {
        for (int i = 0; i < 4; ++i) {
          tile.at[i] *= shrink[i / 2];
        }
      }
      sums.add(block, left_of<T>(weights), values, key);
    }
    float factors[2];
    for (int half = 0; half < 2; ++half) {
      const float sum = row_sum(block, total[half]);
      factors[half] = mask.scale / sum;
      const int row = first + lane / 4 + 8 * half;
      if (a.log_sum_exp != nullptr && lane % 4 == 0 && row < head.count) {
        a.log_sum_exp[head.query(row)] = most[half] * kLn2 + ::logf(sum);
      }
    }
    store_rows<T>(head, sums, factors, a.output, head.first_query + first, head.count - first, lane);
  }
};

/// A head reads 5 n rows and writes 3 n. Scores and weights are computed twice, by the same instructions: for gradients
/// of queries, and for those of keys and values. Each query's sum of weights times their gradients is its gradient
/// times its output.
template <class T, int kColumns>
struct HalfAttentionBackward {
  static constexpr int kMostThreads = kMostWarps * kWarp, kBlocksAtOnce = 2;
  using Arguments = PackedAttentionBackwardArguments;
  using Matrix = HalfRows<T, kColumns>;

  template <class Memory>
  static void uses(Memory& memory, const Arguments& of) {
    const PackedAttentionArguments& a = of.forward;
    reads_inputs(memory, a);
    memory.reads(of.grad, num_weights(a) * a.head_size);
    memory.reads(a.output, num_weights(a) * a.head_size);
    memory.reads(a.log_sum_exp, num_weights(a));
    for (const Span& grads : {of.grad_query, of.grad_key, of.grad_value}) {
      memory.writes(grads, num_weights(a) * a.head_size);
    }
    memory.writes(of.bias_sums, 3 * a.sequences.count * a.num_heads * a.head_size);
  }

  static int shared_bytes(int longest, int warps) {
    constexpr int kFloat = sizeof(float);
    return padded(longest) * (4 * Matrix::kBytes + 2 * kFloat) + warps * (kColumns * kFloat + warps * kWarp);
  }

  MEZZO_DEVICE static void run(const Block& block, const Arguments& of) {
    const PackedAttentionArguments& a = of.forward;
    const Head head = head_of(a, block.index());
    MEZZO_ROLLED
    for (const RowsSpan* grads : {&of.grad_query, &of.grad_key, &of.grad_value}) {
      clear_rows_of_none(block, *grads, head.column(), head.size, a.sequences, head.sequence);
    }
    auto* memory = block.shared<unsigned char>();
    const int rows = padded(head.count), lane = block.thread() % kWarp, first = block.warp() * kTile;
    const auto queries = take_rows<T, kColumns>(memory, rows), keys = take_rows<T, kColumns>(memory, rows),
               values = take_rows<T, kColumns>(memory, rows), grads = take_rows<T, kColumns>(memory, rows);
    float *const log_sum_exp = take_floats(memory, rows), *const products = take_floats(memory, rows),
                 *const scratch = take_floats(memory, block.threads() / kWarp * kColumns);
    copy_rows<T, kColumns, 4>(
        block, head, {queries_of(a, head), keys_of(a, head), values_of(a, head), Source{of.grad, {}, head.first_query}},
        {queries, keys, values, grads}, head.count, a.output, products);
    uint8_t* const kept_weights = memory;  // of the lanes of each tile
    const Mask mask = with_its_step(a.mask);
    const float scale = a.scale * kLog2E;
    MEZZO_ROLLED
    for (int row = block.thread(); row < rows; row += block.threads()) {
      log_sum_exp[row] = row < head.count ? a.log_sum_exp[head.query(row)] * kLog2E : 0;
    }
    block.sync();

    MEZZO_ROLLED
    for (int pass = 0; pass < 2; ++pass) {
      const bool by_keys = pass == 1;
      const Matrix own = by_keys ? keys : queries, own_values = by_keys ? values : grads,
                   others = by_keys ? queries : keys, other_values = by_keys ? grads : values;
      RowSums<kColumns> sums = {}, value_sums = {};
      float shifts[2][2], subtracted[2][2];  // of queries: the warp's rows, or columns of both tiles
      for (int half = 0; first < head.count && !by_keys && half < 2; ++half) {
        shifts[half][0] = shifts[half][1] = log_sum_exp[first + lane / 4 + 8 * half];
        subtracted[half][0] = subtracted[half][1] = products[first + lane / 4 + 8 * half];
      }
      MEZZO_ROLLED
      for (int other = 0; first < head.count && other < rows; other += kTile) {
        if (are_apart(a.window, first, other)) {
          continue;
        }
        SquareTile weights = product_of_rows(block, own, first, others, other),
                   score_grads = product_of_rows(block, own_values, first, other_values, other);
        unsigned kept = kAll;
        if (mask.threshold != 0) {
          const int query_tile = (by_keys ? other : first) / kTile, key_tile = (by_keys ? first : other) / kTile;
          uint8_t* const of_tile = kept_weights + (query_tile * (rows / kTile) + key_tile) * kWarp;
          if (by_keys) {
            kept = transposed(of_tile, lane);
          } else {
            kept = draw_kept(block, mask, head, first, other);
            of_tile[lane] = static_cast<uint8_t>(kept);
          }
        }
        for (int n = 0; by_keys && n < 2; ++n) {
          for (int i = 0; i < 2; ++i) {
            shifts[n][i] = log_sum_exp[other + column_in_tile(lane, n, i)];
            subtracted[n][i] = products[other + column_in_tile(lane, n, i)];
          }
        }
        const unsigned are_weights = weights_of_tile(a, head, lane, first, other);
        for (int n = 0; n < 2; ++n) {
          for (int i = 0; i < 4; ++i) {
            float &weight = weights.at[n].at[i], &grad = score_grads.at[n].at[i];
            const float shift = by_keys ? shifts[n][i % 2] : shifts[i / 2][0],
                        subtrahend = by_keys ? subtracted[n][i % 2] : subtracted[i / 2][0];
            const float exponential = has(are_weights, n, i) ? ::exp2f(::fmaf(weight, scale, -shift)) : 0;
            const float factor = has(kept, n, i) ? mask.scale : 0;
            weight = exponential * factor;
            grad = exponential * ::fmaf(grad, factor, -subtrahend);
          }
        }
        sums.add(block, left_of<T>(score_grads), others, other);
        if (by_keys) {
          value_sums.add(block, left_of<T>(weights), other_values, other);
        }
      }
      put(block, of, head, sums, a.scale, by_keys ? of.grad_key : of.grad_query, by_keys ? kKey : kQuery, scratch);
      if (by_keys) {
        put(block, of, head, value_sums, 1, of.grad_value, kValue, scratch);
      }
    }
  }

 private:
  enum Which : int { kQuery, kKey, kValue };

  /// Writes the warps' rows times `factor`, and their sum, of which each warp has its part in `scratch`.
  MEZZO_DEVICE static void put(const Block& block,
                               const Arguments& of,
                               const Head& head,
                               const RowSums<kColumns>& sums,
                               float factor,
                               const RowsSpan& to,
                               Which which,
                               float* scratch) {
    const int lane = block.thread() % kWarp, warp = block.warp(), first = warp * kTile;
    store_rows<T>(head, sums, {factor, factor}, to, head.first_row + first, head.count - first, lane);
    if (of.bias_sums == nullptr) {
      block.sync();  // what is kept is read by keys next
      return;
    }
    // Of its sixteen rows a lane has two in each of its columns. Lanes of the same columns share these out among them,
    // half at a time, until each has the whole sums of some; rows behind the last one add zeros.
    constexpr int kOfLane = kColumns / 4;
    float of_columns[kOfLane];
    for (int k = 0; k < kOfLane; ++k) {
      of_columns[k] = sums.at[k / 2].at[k % 2] + sums.at[k / 2].at[k % 2 + 2];
    }
    int first_of_lane = 0;
    MEZZO_UNROLLED
    for (int step = 0; step < 3; ++step) {
      const int other = kWarp / 2 >> step, half = kOfLane / 2 >> step;
      const bool is_upper = (lane & other) != 0;
      for (int k = 0; k < half; ++k) {
        const float given = is_upper ? of_columns[k] : of_columns[k + half];
        of_columns[k] = (is_upper ? of_columns[k + half] : of_columns[k]) + block.shuffle_xor(given, other);
      }
      first_of_lane += is_upper ? half : 0;
    }
    for (int k = 0; k < kOfLane / 8; ++k) {
      const int which_column = first_of_lane + k;
      scratch[warp * kColumns + column_in_tile(lane, which_column / 2, which_column % 2)] = of_columns[k] * factor;
    }
    block.sync();
    float* const out = of.bias_sums + (static_cast<int64_t>(head.sequence) * 3 + which) * head.hidden() + head.column();
    MEZZO_ROLLED
    for (int column = block.thread(); column < kColumns; column += block.threads()) {
      float sum = 0;
      MEZZO_ROLLED
      for (int w = 0; w * kTile < head.count; ++w) {
        sum += scratch[w * kColumns + column];
      }
      out[column] = sum;
    }
    block.sync();  // before the scratch is written again
  }
};

/// Calls `body` with the type of the rows, and the columns of a head as a constant.
template <class Body>
void with_half_kind(const PackedAttentionArguments& a, const Body& body) {
  const auto with_columns = [&]<class T>(T) {
    a.head_size == 64 ? body(T(), std::integral_constant<int, 64>()) : body(T(), std::integral_constant<int, 32>());
  };
  a.query.element == Element::kHalf ? with_columns(Half()) : with_columns(BFloat16());
}

/// Whether what this GPU runs was compiled for one that has them: a build for older ones alone runs on newer
/// ones, too, by instructions that know of none.
#ifdef __CUDACC__
bool are_compiled() {
  constexpr int kMostDevices = 64;
  enum : int { kUnknown, kNo, kYes };
  static std::atomic<int> known[kMostDevices];
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device < 0 || device >= kMostDevices) {
    return false;
  }
  if (known[device] == kUnknown) {
    cudaFuncAttributes attributes{};
    const auto error =
        cudaFuncGetAttributes(&attributes, entry_of<HalfAttention<BFloat16, 64>, PackedAttentionArguments>());
    known[device] = error == cudaSuccess && attributes.ptxVersion >= 80 ? kYes : kNo;
  }
  return known[device] == kYes;
}
#else
bool are_compiled() { return true; }
#endif

int warps_of(const PackedAttentionArguments& a) { return static_cast<int>(ceil_div(a.sequences.longest, kTile)); }

}  // namespace

bool suits_tensor_cores(const PackedAttentionArguments& a) {
  return a.has_tensor_cores && a.query.element != Element::kFloat && (a.head_size == 64 || a.head_size == 32) &&
         a.sequences.longest <= kMostRows && !a.only_first_queries && a.rotary == nullptr &&
         a.relative.rows == nullptr && are_compiled();
}

void tensor_core_attention(const PackedAttentionArguments& arguments, Stream stream) {
  const int warps = warps_of(arguments);
  with_half_kind(arguments, [&]<class T, class Columns>(T, Columns) {
    const int shared_bytes = 3 * padded(arguments.sequences.longest) * HalfRows<T, Columns::value>::kBytes;
    launch<HalfAttention<T, Columns::value>>(
        Grid{arguments.sequences.count * arguments.num_heads, warps * kWarp, shared_bytes}, stream, arguments);
  });
}

void tensor_core_attention_backward(const PackedAttentionBackwardArguments& arguments, Stream stream) {
  const auto& a = arguments.forward;
  const int warps = warps_of(a);
  with_half_kind(a, [&]<class T, class Columns>(T, Columns) {
    using Kernel = HalfAttentionBackward<T, Columns::value>;
    launch<Kernel>(
        Grid{a.sequences.count * a.num_heads, warps * kWarp, Kernel::shared_bytes(a.sequences.longest, warps)}, stream,
        arguments);
  });
}

}  // namespace mezzo::encoder::MEZZO_CUDA
