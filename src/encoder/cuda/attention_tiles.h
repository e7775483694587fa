#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "encoder/cuda/attention_launchers.h"
#include "encoder/cuda/mask.h"
#include "encoder/cuda/tensor_cores.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/elements.h"
#ifdef __CUDACC__
#include <cuda_runtime.h>
#endif

/// What forward and backward of packed attention share. A warp computes sixteen rows of a head, its own, against tiles
/// of sixteen other rows of it. All of them lie in shared memory, biases added and turned. Half types are multiplied by
/// tensor cores, float32 one by one.
namespace mezzo::encoder::MEZZO_CUDA {

constexpr int kTile = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;  // exponentials are powers of two

/// Warps of a block at most. Wide heads take more registers.
template <class T, int kColumns, bool kExtra>
constexpr int kMostWarps = kColumns * static_cast<int>(sizeof(T)) <= 128 && !kExtra ? 8 : 4;

MEZZO_DEVICE constexpr int padded(int rows) { return (rows + kTile - 1) / kTile * kTile; }
MEZZO_DEVICE constexpr int smaller(int a, int b) { return a < b ? a : b; }

/// One head of a sequence.
struct Head {
  int sequence, number, heads, size;
  int64_t first_row;
  int count;            ///< of tokens
  int64_t first_query;  ///< row of the first query, of `query`
  int queries;
  int before, after;  ///< query i sees keys i - before ... i + after

  MEZZO_DEVICE int64_t hidden() const { return static_cast<int64_t>(heads) * size; }
  MEZZO_DEVICE int64_t column() const { return static_cast<int64_t>(number) * size; }
  /// A query's place in [rows of `query`, heads].
  MEZZO_DEVICE int64_t query(int row) const { return (first_query + row) * heads + number; }

  /// Whether no query of a tile sees a key of another.
  MEZZO_DEVICE bool are_apart(int query, int key) const {
    return key >= query + kTile + after || query >= key + kTile + before;
  }
};

MEZZO_DEVICE Head head_of(const PackedAttentionArguments& a, int64_t index) {
  const auto number = static_cast<uint32_t>(index), heads = static_cast<uint32_t>(a.rule.num_heads);  // quick to divide
  const int64_t sequence = number / heads;
  const int32_t* const own = a.sequences.table + 2 * sequence;
  const bool only_first = a.rule.only_first_queries;
  const auto reach = [&](int64_t keys) { return static_cast<int>(keys < own[1] ? keys : own[1]); };
  return {.sequence = static_cast<int>(sequence),
          .number = static_cast<int>(number % heads),
          .heads = static_cast<int>(heads),
          .size = static_cast<int>(a.rule.head_size),
          .first_row = own[0],
          .count = own[1],
          .first_query = only_first ? sequence : own[0],
          .queries = only_first ? 1 : own[1],
          .before = reach(a.rule.keys_before),
          .after = reach(a.rule.keys_after)};
}

/// Some rows of a head; `begin` is a tile's.
struct Range {
  int begin, end;
};

/// Of `count` rows those that rows `first` to `end` - 1 meet, which reach so far to both sides.
MEZZO_DEVICE Range within_reach(int first, int end, int before, int after, int count) {
  return {first > before ? (first - before) / kTile * kTile : 0, smaller(count, end + after)};
}

/// Rows of queries.
inline int64_t num_queries(const PackedAttentionArguments& a) {
  return a.rule.only_first_queries ? a.sequences.count : a.sequences.num_rows;
}
/// Of a number per head and query.
inline int64_t num_weights(const PackedAttentionArguments& a) { return a.rule.num_heads * num_queries(a); }
inline int64_t num_key_entries(const PackedAttentionArguments& a) {
  return a.rule.num_heads * a.sequences.num_rows * a.relative.num_rows;
}
inline int most_queries(const PackedAttentionArguments& a) {
  return a.rule.only_first_queries ? 1 : a.sequences.longest;
}

template <class Memory>
void reads_inputs(Memory& memory, const PackedAttentionArguments& a) {
  const int64_t hidden = a.rule.num_heads * a.rule.head_size;
  memory.reads(a.query, num_queries(a) * hidden);
  memory.reads(a.key, a.sequences.num_rows * hidden);
  memory.reads(a.value, a.sequences.num_rows * hidden);
  for (const Span& bias : {a.query_bias, a.key_bias, a.value_bias}) {
    memory.reads(bias, hidden);
  }
  memory.reads(a.rotary, a.sequences.longest * a.rule.head_size);
  if (a.relative.rows != nullptr) {
    memory.reads(a.relative.rows - (a.sequences.longest - 1), 2 * int64_t{a.sequences.longest} - 1);
  }
  memory.reads(a.relative.of_queries, num_weights(a) * a.relative.num_rows);
  memory.reads(a.relative.of_keys, num_key_entries(a));
  memory.reads(a.sequences.table, 2 * a.sequences.count);
  memory.reads(a.mask.step_offset, 1);
}

/// Sets the head's columns to zero in the rows behind its sequence up to the next one's, and before the first.
MEZZO_DEVICE void clear_rows_of_none(const Block& block,
                                     const RowsSpan& of,
                                     const Head& head,
                                     const SequenceSpans& sequences) {
  const auto clear = [&](int64_t first, int64_t end) {
    MEZZO_ROLLED
    for (int64_t row = first + block.thread() / kWarp; row < end; row += block.threads() / kWarp) {
      MEZZO_ROLLED
      for (int column = block.thread() % kWarp; column < head.size; column += kWarp) {
        store(of, row * of.row_stride + head.column() + column, 0);
      }
    }
  };
  const int64_t next =
      head.sequence + 1 < sequences.count ? sequences.table[2 * head.sequence + 2] : sequences.num_rows;
  clear(head.first_row + head.count, next);
  if (head.sequence == 0) {
    clear(0, head.first_row);
  }
}

/// Rows of a head in shared memory. Sixteen bytes behind each row let lanes that read one column of eight rows meet in
/// no bank.
template <class T, int kColumns>
struct Rows {
  static constexpr int kAtOnce = 16 / static_cast<int>(sizeof(T));  ///< elements of 16 bytes
  static constexpr int kStride = kColumns + kAtOnce;
  static constexpr int kBytes = kStride * static_cast<int>(sizeof(T));  ///< of a row
  using Chunk = Pack<T, kAtOnce>;

  T* data;

  MEZZO_DEVICE T* at(int row, int column) const { return data + row * kStride + column; }
  MEZZO_DEVICE Chunk* chunk(int row, int column) const { return reinterpret_cast<Chunk*>(at(row, column)); }
  MEZZO_DEVICE Rows from(int row) const { return {at(row, 0)}; }

  /// Rows `row` ... and columns `column` ..., sixteen each, as factors.
  MEZZO_DEVICE LeftTile<T> left(int lane, int row, int column) const {
    LeftTile<T> tile;
    load_matrices<false>(lane, tile.at, [&](int i) { return at(row + i % 16, column + i / 16 * 8); });
    return tile;
  }
  /// Two right tiles, of 8 columns each.
  struct RightTiles {
    Pair<T> at[4];
    MEZZO_DEVICE RightTile<T> tile(int n) const { return {{at[2 * n], at[2 * n + 1]}}; }
  };
  MEZZO_DEVICE RightTiles right(int lane, int row, int column) const {
    RightTiles tiles;
    load_matrices<true>(lane, tiles.at, [&](int i) { return at(row + i % 16, column + i / 16 * 8); });
    return tiles;
  }
  /// The rows as columns.
  MEZZO_DEVICE RightTiles right_transposed(int lane, int row, int column) const {
    RightTiles tiles;
    load_matrices<false>(lane, tiles.at, [&](int i) { return at(row + i / 16 * 8 + i % 8, column + i / 8 % 2 * 8); });
    return tiles;
  }
};

/// Shared memory, piece by piece.
class SharedMemory {
 public:
  MEZZO_DEVICE explicit SharedMemory(const Block& block) : next_(block.shared<unsigned char>()) {}
  template <class T>
  MEZZO_DEVICE T* take(int count) {
    T* const taken = reinterpret_cast<T*>(next_);
    next_ += count * static_cast<int>(sizeof(T));
    return taken;
  }
  template <class T, int kColumns>
  MEZZO_DEVICE Rows<T, kColumns> rows(int count) {
    return {take<T>(count * Rows<T, kColumns>::kStride)};
  }

 private:
  unsigned char* next_;
};

/// What a head's rows are copied from.
struct Source {
  RowsSpan rows;
  Span bias;                      ///< or none
  int64_t first_row;              ///< the head's first
  const float* rotary = nullptr;  ///< which turns it

  template <class T>
  MEZZO_DEVICE const T* row(const Head& head, int i) const {
    return static_cast<const T*>(rows.data) + (first_row + i) * rows.row_stride + head.column();
  }
};

/// A head and what its rows are copied from. In shared memory, so that no thread keeps all of it in registers.
struct alignas(16) HeadSources {
  Head head;
  Mask mask;
  Source query, key, value, grad;
};

/// The first thread writes them.
MEZZO_DEVICE const HeadSources& share_sources(const Block& block,
                                              HeadSources* shared,
                                              const PackedAttentionArguments& a,
                                              const Head& head,
                                              const RowsSpan& grad) {
  if (block.thread() == 0) {
    *shared = {head,
               with_its_step(a.mask),
               {a.query, a.query_bias, head.first_query, a.rotary},
               {a.key, a.key_bias, head.first_row, a.rotary},
               {a.value, a.value_bias, head.first_row},
               {grad, {}, head.first_query}};
  }
  block.sync();
  return *shared;
}

/// Whether rows of these matrices can be copied by 16 bytes, and a thread can take a chunk of both halves of a row.
template <class T>
bool are_chunks(const PackedAttentionArguments& a, std::initializer_list<RowsSpan> more = {}) {
  bool are = a.rule.head_size * sizeof(T) % 32 == 0 && reinterpret_cast<uintptr_t>(a.rotary) % 16 == 0;
  const auto look = [&](const RowsSpan& rows) {
    are = are && (reinterpret_cast<uintptr_t>(rows.data) | rows.row_stride * sizeof(T)) % 16 == 0;
  };
  for (const RowsSpan& rows : {a.query, a.key, a.value}) {
    look(rows);
  }
  for (const RowsSpan& rows : more) {
    look(rows);
  }
  return are;
}

/// Copies `count` of `rows` rows of `size` columns from memory of any alignment, and zeros behind them.
/// @param bias  in shared memory; nullptr for none
/// @param rotary  of the first row; nullptr for none
template <class T>
MEZZO_COLD void copy_singly(int thread,
                            int threads,
                            const T* from,
                            int64_t stride,
                            const float* bias,
                            const float* rotary,
                            int size,
                            int count,
                            int rows,
                            T* to,
                            int to_stride) {
  const int columns = padded(size), half = size / 2;
  MEZZO_ROLLED
  for (int i = thread; i < rows * columns; i += threads) {
    const int row = i / columns, column = i % columns;
    float x = 0;
    if (row < count && column < size) {
      const auto load = [&](int c) {
        const float y = to_float(from[row * stride + c]);
        return bias != nullptr ? to_float(from_float<T>(y + bias[c])) : y;
      };
      x = load(column);
      if (rotary != nullptr) {
        const float* const angles = rotary + static_cast<int64_t>(row) * size + column % half;
        const float other = load(column < half ? column + half : column - half);
        x = x * angles[0] + (column < half ? -other : other) * angles[half];
      }
    }
    to[row * to_stride + column] = from_float<T>(x);
  }
}

/// Copies rows of a head to shared memory, in two steps: `begin` queues what can be on its way, `finish` adds the bias
/// and turns rows. The same thread does both for an element.
template <class T, int kColumns>
struct RowsCopy {
  using Matrix = Rows<T, kColumns>;
  static constexpr int kAtOnce = Matrix::kAtOnce;

  const Block& block;
  const Head& head;
  bool are_chunks;

  /// Rows `first` ... to `rows` rows, zero behind the last of `count` rows of the head.
  MEZZO_DEVICE void begin(const Source& source_of, int first, int count, int rows, const Matrix& to) const {
    if (are_chunks) {
      const Source from = source_of;
      for_chunks(rows, [&](int row, int column) {
        const bool is_there = first + row < count;
        const T* const source = from.row<T>(head, is_there ? first + row : 0) + column;
        for (const int half : {0, head.size / 2}) {
          if (is_there) {
            copy_async(to.chunk(row, column + half), reinterpret_cast<const typename Matrix::Chunk*>(source + half));
          } else {
            *to.chunk(row, column + half) = {};
          }
        }
      });
    }
  }

  /// @param bias  of the head's columns, as T holds them; in shared memory
  MEZZO_DEVICE void finish(
      const Source& source_of, int first, int count, int rows, const Matrix& to, const float* bias) const {
    const Source from = source_of;
    if (!are_chunks) {
      return copy_singly(block.thread(), block.threads(), from.row<T>(head, first), from.rows.row_stride,
                         from.bias.data != nullptr ? bias : nullptr,
                         from.rotary != nullptr ? from.rotary + static_cast<int64_t>(first) * head.size : nullptr,
                         head.size, count - first, rows, to.data, Matrix::kStride);
    }
    if (from.bias.data == nullptr && from.rotary == nullptr) {
      return;
    }
    for_chunks(smaller(rows, count - first), [&](int row, int column) {
      const int half = head.size / 2;
      auto left = *to.chunk(row, column), right = *to.chunk(row, column + half);
      if (from.bias.data != nullptr) {
        for (int i = 0; i < kAtOnce; ++i) {
          left.at[i] = from_float<T>(to_float(left.at[i]) + bias[column + i]);
          right.at[i] = from_float<T>(to_float(right.at[i]) + bias[column + half + i]);
        }
      }
      if (from.rotary != nullptr) {
        const float* const angles = from.rotary + static_cast<int64_t>(first + row) * head.size + column;
        for (int four = 0; four < kAtOnce; four += 4) {
          const auto cosine = *reinterpret_cast<const Pack<float, 4>*>(angles + four),
                     sine = *reinterpret_cast<const Pack<float, 4>*>(angles + half + four);
          for (int i = 0; i < 4; ++i) {
            const float l = to_float(left.at[four + i]), r = to_float(right.at[four + i]);
            left.at[four + i] = from_float<T>(l * cosine.at[i] - r * sine.at[i]);
            right.at[four + i] = from_float<T>(r * cosine.at[i] + l * sine.at[i]);
          }
        }
      }
      *to.chunk(row, column) = left;
      *to.chunk(row, column + half) = right;
    });
  }

 private:
  /// Calls `body(row, column)` for the chunks of the left half of every row; each thread takes its own.
  template <class Body>
  MEZZO_DEVICE void for_chunks(int rows, const Body& body) const {
    constexpr int kChunks = kColumns / (2 * kAtOnce);
    const int column = block.thread() % kChunks * kAtOnce;
    MEZZO_ROLLED
    for (int row = block.thread() / kChunks; row < rows && 2 * column < head.size; row += block.threads() / kChunks) {
      body(row, column);
    }
  }
};

/// Of query, key and value the biases of a head, as T holds them, [3, kColumns] floats in shared memory.
template <class T, int kColumns>
MEZZO_DEVICE void load_biases(const Block& block, const PackedAttentionArguments& a, const Head& head, float* to) {
  for (int m = 0; m < 3; ++m) {
    const Span& bias = m == 0 ? a.query_bias : m == 1 ? a.key_bias : a.value_bias;
    for (int c = block.thread(); bias.data != nullptr && c < head.size; c += block.threads()) {
      to[m * kColumns + c] = rounded(load(bias, head.column() + c), element_of<T>());
    }
  }
}

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
  block.sync();  // what else is loaded before is there
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

/// Two neighbouring tiles of sums: sixteen rows by sixteen columns. Element i of a lane's tile n is of row
/// lane / 4 + 8 (i / 2) and column 8 n + 2 (lane % 4) + i % 2.
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
