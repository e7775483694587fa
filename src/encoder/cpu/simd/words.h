#pragma once

#include <cstddef>
#include <utility>

#include "encoder/cpu/simd/dropout_mask.h"
#include "encoder/cpu/simd/rows.h"
#include "encoder/cpu/simd/table.h"
#include "kernels/cpu/simd/convert.h"

/// Small matrices in scratch memory and their products, word by word. A word has the size of a float. It is a float32,
/// or two bfloat16 that follow each other along the depth, if the processor multiplies bfloat16. As a left operand a
/// matrix holds its rows' values in pairs, as a right one its columns'.
namespace mezzo::encoder::cpu::MEZZO_SIMD {

inline int64_t round_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }
inline int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }

/// A matrix in scratch, its rows a whole number of vectors apart.
struct Matrix {
  float* data;
  int64_t stride;
  float* row(int64_t i) const { return data + i * stride; }
  Matrix from_row(int64_t i) const { return {row(i), stride}; }
  Matrix from_column(int64_t j) const { return {data + j, stride}; }
};

/// Hands out parts of one piece of memory.
class Arena {
 public:
  explicit Arena(float* memory) : next_(memory) {}
  float* take(int64_t count) {
    float* taken = next_;
    next_ += round_up(count, 16);
    return taken;
  }
  Matrix matrix(int64_t rows, int64_t columns) { return {take(rows * stride(columns)), stride(columns)}; }

  /// Of the rows of a matrix.
  static int64_t stride(int64_t columns) {
    const int64_t whole = round_up(columns, kMaskRun);
    return whole % 1024 == 0 ? whole + 16 : whole;  // else a column's elements share a cache set
  }

 private:
  float* next_;
};

inline void fill_zero(const Matrix& matrix, int64_t rows) {
  __builtin_memset(matrix.data, 0, static_cast<std::size_t>(rows * matrix.stride) * sizeof(float));
}

/// Rows `first` ... of one head, with the bias, times `scale`; zeros in the columns up to the next whole vector.
inline void copy_in(ConstSpan from,
                    int64_t stride,
                    const float* bias,
                    float scale,
                    int64_t first,
                    int64_t rows,
                    int64_t columns,
                    const Matrix& to) {
  for (int64_t i = 0; i < rows; ++i) {
    float* out = to.row(i);
    const float* in = read(from, (first + i) * stride, columns, out);
    read_ahead(tail(from, (first + i) * stride + columns), columns);  // of the next head, whose turn comes next
    for_each_vector(columns, [&](int64_t d, auto get, auto) {
      const Floats x = bias != nullptr ? get(in + d) + get(bias + d) : get(in + d);
      store(out + d, x * scale);  // lanes beyond `columns` are zero
    });
  }
}

struct FloatWords {
  static constexpr int64_t kValues = 1;  ///< of a word

  static Floats add_product(Floats sum, float left, Floats right) { return sum + left * right; }

  static void to_left(const Matrix& /*matrix*/, int64_t /*rows*/, int64_t /*columns*/) {}

  static Matrix to_right(const Matrix& from, int64_t /*rows*/, int64_t /*columns*/, const Matrix& /*to*/) {
    return from;
  }
};

#ifdef __AVX512BF16__
/// Subnormal numbers count as zeros, as in LibTorch's products with the same instructions.
struct BFloat16Pairs {
  static constexpr int64_t kValues = 2;

  static Floats add_product(Floats sum, float left, Floats right) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_ps(left), (__m512bh)right);
  }

  /// Rounds float32 values in place. Where `columns` is odd, there is a zero behind them.
  static void to_left(const Matrix& matrix, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; ++i) {
      convert<Elements<Element::kFloat>, Elements<Element::kBFloat16>>(matrix.row(i), matrix.row(i),
                                                                       round_up(columns, kValues));
    }
  }

  /// Rounds float32 values into `to`, which may be `from`; a row beyond the last one is zero.
  static Matrix to_right(const Matrix& from, int64_t rows, int64_t columns, const Matrix& to) {
    for (int64_t i = 0; i < rows; i += kValues) {
      const bool has_second = i + 1 < rows;
      for (int64_t j = 0; j < columns; j += kWidth) {
        const Floats second = has_second ? load(from.row(i + 1) + j) : Floats{};
        store(to.row(i / kValues) + j, (Floats)(rounded(load(from.row(i) + j)) | rounded(second) << 16));
      }
    }
    return to;
  }

 private:
  static Bits rounded(Floats x) {
    return (Bits)_mm512_maskz_cvtepu16_epi32(0xFFFF, (__m256i)_mm512_cvtneps_pbh((__m512)x));
  }
};
#endif

template <class Words>
constexpr int64_t words_of(int64_t depth) {
  return (depth + Words::kValues - 1) / Words::kValues;
}

/// How a left operand is read: word (i, k) lies at data[i * row + k * column].
struct Strided {
  const float* data;
  int64_t row, column;
};

inline Strided plain(const Matrix& a) { return {a.data, a.stride, 1}; }
/// Of a right operand: its columns become rows.
inline Strided transposed(const Matrix& a) { return {a.data, 1, a.stride}; }

/// kRows rows and kVectors vectors of c, from `depth` words of a and rows of b;
/// held in registers meanwhile.
template <class Words, int kRows, int kVectors, bool kAdd>
inline void product_tile(const Strided& a, const float* b, int64_t b_row, int64_t depth, float* c, int64_t c_row) {
  Floats sums[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] = kAdd ? load(c + i * c_row + v * kWidth) : Floats{};
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    Floats right[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      right[v] = load(b + k * b_row + v * kWidth);
    }
    for (int i = 0; i < kRows; ++i) {
      const float left = a.data[i * a.row + k * a.column];
      for (int v = 0; v < kVectors; ++v) {
        sums[i][v] = Words::add_product(sums[i][v], left, right[v]);
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      store(c + i * c_row + v * kWidth, sums[i][v]);
    }
  }
}

template <class Words, int kVectors, bool kAdd>
void product_columns(
    const Strided& a, const float* b, int64_t b_row, int64_t rows, int64_t depth, float* c, int64_t c_row) {
  constexpr int kRows = 6;  // 12 sums, 2 vectors of b and one of a: the 16 registers of AVX2
  const auto from = [&](int64_t i) { return Strided{a.data + i * a.row, a.row, a.column}; };
  int64_t i = 0;
  for (; i + kRows <= rows; i += kRows) {
    product_tile<Words, kRows, kVectors, kAdd>(from(i), b, b_row, depth, c + i * c_row, c_row);
  }
  for (; i + 2 <= rows; i += 2) {
    product_tile<Words, 2, kVectors, kAdd>(from(i), b, b_row, depth, c + i * c_row, c_row);
  }
  for (; i < rows; ++i) {
    product_tile<Words, 1, kVectors, kAdd>(from(i), b, b_row, depth, c + i * c_row, c_row);
  }
}

/// c = a b, or c += a b: [rows, depth] times [depth, columns], `depth` values long. Columns up to the next
/// multiple of kWidth are computed too.
template <class Words, bool kAdd>
void product(const Strided& a, const Matrix& b, int64_t rows, int64_t depth, int64_t columns, const Matrix& c) {
  const int64_t words = words_of<Words>(depth);
  int64_t j = 0;
  for (; j + kWidth < columns; j += 2 * kWidth) {
    product_columns<Words, 2, kAdd>(a, b.data + j, b.stride, rows, words, c.data + j, c.stride);
  }
  if (j < columns) {
    product_columns<Words, 1, kAdd>(a, b.data + j, b.stride, rows, words, c.data + j, c.stride);
  }
}

/// Lanes of (a, b): the lanes of b follow the lanes of a.
template <class Choose, int... kLanes>
inline Floats choose(Floats a, Floats b, std::integer_sequence<int, kLanes...> /*lanes*/) {
  return __builtin_shufflevector(a, b, Choose::of(kLanes)...);
}

template <class Choose>
inline Floats choose(Floats a, Floats b) {
  return choose<Choose>(a, b, std::make_integer_sequence<int, kWidth>());
}

/// Those of b in lanes whose number has bit `kBit`.
template <int kBit>
struct SecondWhere {
  static constexpr int of(int lane) { return (lane & kBit) != 0 ? static_cast<int>(kWidth) + lane : lane; }
};

/// Every other run of kBit lanes, of a and of b in turn: those without the bit, or with it.
template <int kBit, bool kWith>
struct RunsOf {
  static constexpr int of(int lane) {
    const int second = (lane & kBit) != 0 ? static_cast<int>(kWidth) - kBit : 0;
    return second + lane + (kWith ? kBit : 0);
  }
};

/// Element l of x[k] and element k of x[l] change places.
template <int kBit = 1>
inline void transpose(Floats (&x)[kWidth]) {
#pragma GCC unroll 16
  for (int64_t i = 0; i < kWidth; ++i) {
    if ((i & kBit) == 0) {
      const Floats a = x[i], b = x[i + kBit];
      x[i] = choose<RunsOf<kBit, false>>(a, b);
      x[i + kBit] = choose<RunsOf<kBit, true>>(a, b);
    }
  }
  if constexpr (2 * kBit < kWidth) {
    transpose<2 * kBit>(x);
  }
}

/// Of words: [rows, columns] to [columns, rows], and zeros up to a whole vector.
inline void transpose(const Matrix& from, int64_t rows, int64_t columns, const Matrix& to) {
  for (int64_t i = 0; i < rows; i += kWidth) {
    for (int64_t j = 0; j < columns; j += kWidth) {
      Floats square[kWidth];
      for (int64_t k = 0; k < kWidth; ++k) {
        square[k] = i + k < rows ? load(from.row(i + k) + j) : Floats{};
      }
      transpose(square);
      for (int64_t k = 0; k < at_most(kWidth, columns - j); ++k) {
        store(to.row(j + k) + i, square[k]);
      }
    }
  }
}

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
