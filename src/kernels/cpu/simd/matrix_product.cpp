#include "kernels/cpu/simd/convert.h"
#include "kernels/cpu/simd/table.h"

namespace mezzo::kernels::cpu::MEZZO_SIMD {
namespace {

// A panel of b, kDepth rows of it, stays in the L1 cache while the rows of a pass by, which lie in L2.
// Twice that makes fewer passes over the output and is 2 % faster, but longer sums are less accurate.
constexpr int64_t kDepth = 384;

// A tile of the output: with AVX2's 16 registers, 12 sums, 2 vectors of b and one value of a.
constexpr int kRows = 6;
constexpr int kVectors = 2;
constexpr int64_t kColumns = kVectors * kWidth;

constexpr int64_t kRowsAhead = 8;    // rows are read ahead while others are packed, which lie far from each other
constexpr int64_t kPanelsATime = 4;  // filled by neighbouring cache lines of each row

constexpr int64_t kLine = 16;       // floats of a cache line
constexpr int64_t kLineSteps = 16;  // a panel is read ahead while the rows of a block pass by, 1 / 16 of it a tile

#define MEZZO_UNROLL _Pragma("GCC unroll 8")

/// Rows of a: element (i, k) at data[i * row + k * step].
struct Rows {
  const float* data;
  int64_t row, step;
};

/// One column of a times one row of b, added to the sums.
template <int kCount>
[[gnu::always_inline]] inline void add_column(
    const float* first, const float* second, int64_t row, const float* b, Floats (&sums)[kCount][kVectors]) {
  Floats right[kVectors];
  MEZZO_UNROLL for (int v = 0; v < kVectors; ++v) { right[v] = load(b + v * kWidth); }
  MEZZO_UNROLL for (int i = 0; i < kCount; ++i) {
    const float left = i < 3 ? first[i * row] : second[(i - 3) * row];
    MEZZO_UNROLL for (int v = 0; v < kVectors; ++v) { sums[i][v] += left * right[v]; }
  }
}

/// c = a b or c += a b, kCount rows and one panel; b [depth, kColumns]. Asks for a cache line from `ahead` on every
/// kLineSteps steps.
template <int kCount, bool kAdd>
[[gnu::noinline]] void tile(
    const Rows& a, const float* b, int64_t depth, float* c, int64_t stride, const float* ahead) {
  Floats sums[kCount][kVectors];
  MEZZO_UNROLL for (int i = 0; i < kCount; ++i) {
    __builtin_prefetch(c + i * stride, 1);
    MEZZO_UNROLL for (int v = 0; v < kVectors; ++v) { sums[i][v] = Floats{}; }
  }
  const int64_t row = a.row, step = a.step;
  const float *first = a.data, *second = a.data + 3 * row;  // few pointers, so that all stay in registers
  int64_t k = 0;
  for (; k + kLineSteps <= depth; k += kLineSteps) {
    __builtin_prefetch(ahead);
    ahead += kLine;
    _Pragma("GCC unroll 4") for (int j = 0; j < kLineSteps; ++j) {
      add_column<kCount>(first, second, row, b, sums);
      b += kColumns;
      first += step;
      second += step;
    }
  }
  for (; k < depth; ++k) {
    add_column<kCount>(first, second, row, b, sums);
    b += kColumns;
    first += step;
    second += step;
  }
  MEZZO_UNROLL for (int i = 0; i < kCount; ++i) {
    MEZZO_UNROLL for (int v = 0; v < kVectors; ++v) {
      float* place = c + i * stride + v * kWidth;
      store(place, kAdd ? load(place) + sums[i][v] : sums[i][v]);
    }
  }
}

template <bool kAdd>
void tile_of(
    int64_t count, const Rows& a, const float* b, int64_t depth, float* c, int64_t stride, const float* ahead) {
  switch (count) {
    case 1: return tile<1, kAdd>(a, b, depth, c, stride, ahead);
    case 2: return tile<2, kAdd>(a, b, depth, c, stride, ahead);
    case 3: return tile<3, kAdd>(a, b, depth, c, stride, ahead);
    case 4: return tile<4, kAdd>(a, b, depth, c, stride, ahead);
    case 5: return tile<5, kAdd>(a, b, depth, c, stride, ahead);
    default: return tile<kRows, kAdd>(a, b, depth, c, stride, ahead);
  }
}

/// to[j * stride + i] = from[i * row + j], 8 of each.
void transpose_8x8(const float* from, int64_t row, float* to, int64_t stride) {
  __m256 r[8], s[8];
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm256_loadu_ps(from + i * row);
  }
  for (int i = 0; i < 8; i += 2) {
    s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xEE);
    r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xEE);
  }
  for (int j = 0; j < 4; ++j) {
    _mm256_storeu_ps(to + j * stride, _mm256_permute2f128_ps(r[j], r[j + 4], 0x20));
    _mm256_storeu_ps(to + (j + 4) * stride, _mm256_permute2f128_ps(r[j], r[j + 4], 0x31));
  }
}

/// Rows `begin` ... of a, columns `k` ...: in place if they can be read so, else in `packed`.
Rows rows_of(const MatrixView& a, int64_t begin, int64_t count, int64_t k, int64_t depth, float* packed) {
  const auto span = tail(a.elements, begin * a.row + k * a.column);
  if (a.column == 1) {
    if (span.element == Element::kFloat) {
      return {static_cast<const float*>(span.data), a.row, 1};
    }
    for (int64_t i = 0; i < count; ++i) {
      read(span, i * a.row, depth, packed + i * depth);
    }
    return {packed, depth, 1};
  }
  // Groups of kRows rows, their elements of one column side by side. Copies of 8 reach into the next column, which
  // comes later; the last column has none.
  float column[kLargestRowBlock + 8];
  for (int64_t j = 0; j < depth; ++j) {
    read_ahead(tail(span, (j + kRowsAhead) * a.column), count);
    const float* values = read(span, j * a.column, count, column);
    float* to = packed + j * kRows;
    int64_t i = 0;
    if (j + 1 < depth) {
      for (; i + 8 <= count; i += kRows, to += depth * kRows) {
        __builtin_memcpy(to, values + i, 8 * sizeof(float));
      }
    }
    for (; i < count; i += kRows, to += depth * kRows) {
      for (int64_t left = 0; left < at_most(kRows, count - i); ++left) {
        to[left] = values[i + left];
      }
    }
  }
  return {packed, 1, kRows};
}

/// At most kPanelsATime panels of rows of b.
void pack_rows(ConstSpan b, int64_t stride, int64_t columns, int64_t depth, float* packed) {
  float converted[kPanelsATime * kColumns];
  for (int64_t k = 0; k < depth; ++k) {
    read_ahead(tail(b, (k + kRowsAhead) * stride), columns);
    const float* row = read(b, k * stride, columns, converted);
    float* to = packed + k * kColumns;
    int64_t j = 0;
    for (; j + kColumns <= columns; j += kColumns, to += depth * kColumns) {
      MEZZO_UNROLL for (int v = 0; v < kVectors; ++v) { store(to + v * kWidth, load(row + j + v * kWidth)); }
    }
    if (j < columns) {
      for (int64_t i = 0; i < kColumns; ++i) {
        to[i] = j + i < columns ? row[j + i] : 0;
      }
    }
  }
}

/// One panel of b, whose columns lie in memory as rows do.
void pack_columns(ConstSpan b, int64_t stride, int64_t columns, int64_t depth, float* packed) {
  constexpr int64_t kRun = 64;
  float run[8 * kRun];
  for (int64_t j = 0; j < kColumns; j += 8) {
    for (int64_t k = 0; k < depth; k += kRun) {
      const int64_t length = at_most(kRun, depth - k);
      const float* rows = run;
      int64_t row = kRun;
      if (b.element == Element::kFloat && j + 8 <= columns) {
        rows = static_cast<const float*>(b.data) + j * stride + k;
        row = stride;
      } else {
        for (int64_t i = 0; i < 8; ++i) {
          float* to = run + i * kRun;
          if (j + i < columns) {
            const float* values = read(b, (j + i) * stride + k, length, to);
            if (values != to) {
              __builtin_memcpy(to, values, static_cast<std::size_t>(length) * sizeof(float));
            }
          } else {
            __builtin_memset(to, 0, static_cast<std::size_t>(length) * sizeof(float));
          }
        }
      }
      int64_t d = 0;
      for (; d + 8 <= length; d += 8) {
        transpose_8x8(rows + d, row, packed + (k + d) * kColumns + j, kColumns);
      }
      for (; d < length; ++d) {
        for (int64_t i = 0; i < 8; ++i) {
          packed[(k + d) * kColumns + j + i] = rows[i * row + d];
        }
      }
    }
  }
}

void pack_panels(const MatrixView& b, int64_t first_column, int64_t columns, int64_t depth, float* packed) {
  const auto span = tail(b.elements, first_column * b.column);
  const int64_t width = b.column == 1 ? kPanelsATime * kColumns : kColumns;
  for (int64_t first = 0; first < columns; first += width, packed += width * depth) {
    const auto columns_now = at_most(width, columns - first);
    if (b.column == 1) {
      pack_rows(tail(span, first), b.row, columns_now, depth, packed);
    } else {
      pack_columns(tail(span, first * b.column), b.column, columns_now, depth, packed);
    }
  }
}

int64_t product_scratch(int64_t columns) {
  return kLargestRowBlock * kDepth + kRows * kColumns + kLargestRowBlock * columns;
}

/// output [count, columns] = or += rows of a times the packed b, from step `k` of the term on; `edge` [kRows,
/// kColumns].
void multiply(const Rows& rows,
              int64_t count,
              const ProductTerm& term,
              int64_t k,
              int64_t depth,
              int64_t columns,
              bool adds,
              float* output,
              float* edge) {
  const int64_t next_rows = rows.step == 1 ? kRows * rows.row : depth * kRows;
  for (int64_t column = 0; column < columns; column += kColumns) {
    const float *panel = term.packed + column * term.depth + k * kColumns, *ahead = panel + term.depth * kColumns;
    const int64_t width = at_most(kColumns, columns - column);
    Rows group = rows;
    for (int64_t i = 0; i < count; i += kRows, group.data += next_rows, ahead += depth / kLineSteps * kLine) {
      const int64_t height = at_most(kRows, count - i);
      float* c = output + i * columns + column;
      if (width == kColumns) {
        adds ? tile_of<true>(height, group, panel, depth, c, columns, ahead)
             : tile_of<false>(height, group, panel, depth, c, columns, ahead);
        continue;
      }
      tile_of<false>(height, group, panel, depth, edge, kColumns, ahead);
      for (int64_t r = 0; r < height; ++r) {
        for (int64_t j = 0; j < width; ++j) {
          const float sum = edge[r * kColumns + j];
          c[r * columns + j] = adds ? c[r * columns + j] + sum : sum;
        }
      }
    }
  }
}

void product_rows(const ProductRows& op, int64_t begin, int64_t end, float* scratch) {
  const int64_t count = end - begin, first = begin * op.columns, size = count * op.columns;
  float *packed = scratch, *edge = packed + kLargestRowBlock * kDepth;
  float* output = place(op.output, first, edge + kRows * kColumns);
  bool adds = op.adds;
  if (adds) {
    read(op.output, first, size, output);
  }
  for (int64_t t = 0; t < op.num_terms; ++t) {
    const ProductTerm& term = op.terms[t];
    const int64_t blocks = (term.depth + kDepth - 1) / kDepth;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t k = term.depth * block / blocks, depth = term.depth * (block + 1) / blocks - k;
      const Rows rows = rows_of(term.a, begin, count, k, depth, packed);
      multiply(rows, count, term, k, depth, op.columns, adds, output, edge);
      adds = true;
    }
  }
  if (!adds) {  // no terms, or none with depth
    __builtin_memset(output, 0, static_cast<std::size_t>(size) * sizeof(float));
  }
  write(output, op.output, first, size);
}

}  // namespace

const ProductKernels product_kernels = {.tile_rows = kRows,
                                        .panel_columns = kColumns,
                                        .pack_panels = pack_panels,
                                        .scratch = product_scratch,
                                        .rows = product_rows};

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
