#pragma once

#include <cstdint>
#include <initializer_list>

#include "encoder/cuda/attention_head.h"
#include "encoder/cuda/mask.h"
#include "encoder/cuda/tensor_cores.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/elements.h"

/// Copies rows of a head to shared memory, adds their biases, and turns them.
namespace mezzo::encoder::MEZZO_CUDA {

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

/// The sources of a head's rows.
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

/// Copies rows of a head to shared memory, in two steps: `begin` queues asynchronous copies, `finish` adds the bias and
/// turns rows. The same thread does both for an element.
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

}  // namespace mezzo::encoder::MEZZO_CUDA
