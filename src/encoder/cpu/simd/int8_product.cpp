#include <type_traits>

#include "encoder/cpu/simd/amx_tiles.h"
#include "encoder/cpu/simd/product_tile.h"
#include "encoder/cpu/simd/rows.h"
#include "encoder/cpu/simd/table.h"
#include "kernels/cpu/simd/convert.h"

namespace mezzo::encoder::cpu::MEZZO_SIMD {
namespace {

// Integers are multiplied word by word, of 32 bits. A word is four bytes if the processor multiplies bytes and adds the
// products up (VNNI), else two int16. Either way sums are exact, so that they are the same on all processors.

int32_t word_at(const void* place) {
  int32_t word;
  __builtin_memcpy(&word, place, sizeof word);
  return word;
}

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
/// The instruction takes the left side without a sign, so its values are differences from the row's least one.
struct Words {
  using Value = uint8_t;
  static constexpr int64_t kValues = 4;
  static constexpr bool kFromLeast = true;

#ifdef __AVX512VNNI__
  static Ints add_product(Ints sum, const char* left, Ints right) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(word_at(left)), (__m512i)right);
  }
  static void store(Value* to, Ints values) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_maskz_cvtepi32_epi8(0xFFFF, (__m512i)values));
  }
#else
  static Ints add_product(Ints sum, const char* left, Ints right) {
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, _mm256_set1_epi32(word_at(left)), (__m256i)right);
  }
  static void store(Value* to, Ints values) {
    const auto low = _mm256_castsi256_si128((__m256i)values), high = _mm256_extracti128_si256((__m256i)values, 1);
    const auto words = _mm_packs_epi32(low, high);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
  }
#endif
  static int32_t of_weights(const int8_t* weights) { return word_at(weights); }
};
#else
struct Words {
  using Value = int16_t;
  static constexpr int64_t kValues = 2;
  static constexpr bool kFromLeast = false;

#ifdef __AVX512F__
  static Ints add_product(Ints sum, const char* left, Ints right) {
    return sum + (Ints)_mm512_madd_epi16(_mm512_set1_epi32(word_at(left)), (__m512i)right);
  }
  static void store(Value* to, Ints values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_maskz_cvtepi32_epi16(0xFFFF, (__m512i)values));
  }
#else
  static Ints add_product(Ints sum, const char* left, Ints right) {
    return sum + (Ints)_mm256_madd_epi16(_mm256_set1_epi32(word_at(left)), (__m256i)right);
  }
  static void store(Value* to, Ints values) {
    const auto low = _mm256_castsi256_si128((__m256i)values), high = _mm256_extracti128_si256((__m256i)values, 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_packs_epi32(low, high));
  }
#endif
  static int32_t of_weights(const int8_t* weights) {
    const int32_t first = weights[0], second = weights[1];
    return static_cast<int32_t>((static_cast<uint32_t>(first) & 0xFFFF) | static_cast<uint32_t>(second) << 16);
  }
};
#endif

#ifdef __AMX_INT8__
constexpr int64_t kRows = kAmxRows;
#else
constexpr int kRows = kTileRows;
#endif
constexpr int kVectors = kTileVectors;
constexpr int64_t kColumns = kTileColumns;

int64_t words_of(int64_t depth) { return (depth + Words::kValues - 1) / Words::kValues; }
int64_t row_bytes(int64_t depth) { return words_of(depth) * static_cast<int64_t>(sizeof(int32_t)); }

Ints nearest(Floats x) {
#ifdef __AVX512F__
  return (Ints)_mm512_maskz_cvtps_epi32(0xFFFF, (__m512)x);
#else
  return (Ints)_mm256_cvtps_epi32((__m256)x);
#endif
}

struct Range {
  float least, most;  ///< with 0 among them
  bool is_finite;
};

template <class From>
Range range_of(const void* row, int64_t count) {
  Floats least{}, most{};
  Ints magnitude{};  // bits of the largest: bits of inf and NaN are larger than all others
  for_elements(count, [&](int64_t i, auto part) {
    const Floats x = From::load(row, i, part);
    const Ints bits = (Ints)x & 0x7FFFFFFF;
    least = x < least ? x : least;
    most = x > most ? x : most;
    magnitude = bits > magnitude ? bits : magnitude;
  });
  Range range{0, max(most), true};
  for (int64_t i = 0; i < kWidth; ++i) {
    range.least = least[i] < range.least ? least[i] : range.least;
    range.is_finite = range.is_finite && magnitude[i] < 0x7F800000;
  }
  return range;
}

/// One row, of which integers are x * factor, to nearest, `least` to `least` + 255.
template <class From>
void quantize_row(const void* row, int64_t count, float factor, int32_t least, Words::Value* to) {
  const int32_t most = least + kInt8Steps, origin = Words::kFromLeast ? least : 0;
  for_elements(count, [&]<class Part>(int64_t i, Part part) {
    const Ints nearest_values = nearest(From::load(row, i, part) * factor);
    const Ints values = (nearest_values < most ? nearest_values : most) - origin;
    if constexpr (std::is_same_v<Part, All>) {
      Words::store(to + i, values);
    } else {
      Words::Value last[kWidth];
      Words::store(last, values);
      __builtin_memcpy(to + i, last, static_cast<std::size_t>(part.count) * sizeof(Words::Value));
    }
  });
  for (int64_t i = count; i < words_of(count) * Words::kValues; ++i) {
    to[i] = 0;  // times weights of 0
  }
}

void quantize_rows(ConstSpan x, int64_t row_stride, const Int8Rows& to, int64_t begin, int64_t end) {
  constexpr auto kSteps = static_cast<float>(kInt8Steps);
  with_elements(x.element, [&]<class From>(From) {
    for (int64_t i = begin; i < end; ++i) {
      const void* row = tail(x, i * row_stride).data;
      auto* values = reinterpret_cast<Words::Value*>(to.values + i * row_bytes(to.depth));
      const Range range = range_of<From>(row, to.depth);
      const float width = range.most - range.least;
      const bool is_finite = range.is_finite && float_to_bits(width) < 0x7F800000;
      const bool has_values = is_finite && width >= kInt8Smallest;
      const float factor = has_values ? kSteps / width : 0;
      const int32_t least = has_values ? nearest(broadcast(range.least * factor))[0] : 0;
      if (is_finite) {
        quantize_row<From>(row, to.depth, factor, least, values);
      } else {
        __builtin_memset(values, 0, static_cast<std::size_t>(row_bytes(to.depth)));
      }
      to.least[i] = Words::kFromLeast ? least : 0;
      to.scales[i] = !is_finite ? bits_to_float(0x7FC00000) : has_values ? width / kSteps : 0;
    }
  });
}

/// Sums before the first product: the part of the rows' least values.
template <int kCount>
[[gnu::always_inline]] inline void begin_sums(const Int8Product& op,
                                              int64_t row,
                                              int64_t column,
                                              Ints (&sums)[kCount][kVectors]) {
  MEZZO_UNROLL for (int v = 0; v < kVectors; ++v) {
    Ints of_weights;
    __builtin_memcpy(&of_weights, op.weight_sums + column + v * kWidth, sizeof of_weights);
    MEZZO_UNROLL for (int i = 0; i < kCount; ++i) { sums[i][v] = of_weights * op.rows.least[row + i]; }
  }
}

/// Scales complete sums into the output.
template <int kCount>
[[gnu::always_inline]] inline void scale(const Int8Product& op,
                                         int64_t row,
                                         int64_t column,
                                         const Ints (&sums)[kCount][kVectors]) {
  const float* row_scales = op.rows.scales + row;
  with_elements(op.output.element, [&]<class To>(To) {
    MEZZO_UNROLL for (int v = 0; v < kVectors; ++v) {
      const int64_t first_column = column + v * kWidth, left = op.columns - first_column;
      char* to = static_cast<char*>(op.output.data) + (row * op.columns + first_column) * To::kBytes;
      const Floats scales = load(op.scales + first_column);
      if (left >= kWidth) {
        MEZZO_UNROLL for (int i = 0; i < kCount; ++i) {
          To::store(to, i * op.columns, All{}, __builtin_convertvector(sums[i][v], Floats) * (scales * row_scales[i]));
        }
      } else if (left > 0) {
        MEZZO_UNROLL for (int i = 0; i < kCount; ++i) {
          To::store(to, i * op.columns, First{left},
                    __builtin_convertvector(sums[i][v], Floats) * (scales * row_scales[i]));
        }
      }
    }
  });
}

#ifdef __AMX_INT8__
struct Tiles {
  /// `count` rows from `row` on times one panel, whose first column is `column`.
  void multiply(const Int8Product& op, int64_t row, int64_t count, const int32_t* panel, int64_t column) {
    const int64_t bytes = row_bytes(op.rows.depth);
    tiles.multiply<true>(op.rows.values + row * bytes, bytes, count, panel, words_of(op.rows.depth));
    for (int64_t i = 0; i < count; ++i) {
      Ints sums[1][kVectors];
      begin_sums<1>(op, row + i, column, sums);
      MEZZO_UNROLL for (int v = 0; v < kVectors; ++v) {
        Ints products;
        __builtin_memcpy(&products, tiles.sums[i] + v * kWidth, sizeof products);
        sums[0][v] += products;
      }
      scale<1>(op, row + i, column, sums);
    }
  }

  AmxTiles tiles;
};
#else
/// kCount rows from `row` on times one panel, whose first column is `column`.
template <int kCount>
[[gnu::noinline]] void tile(const Int8Product& op, int64_t row, const int32_t* panel, int64_t column) {
  const Int8Rows& rows = op.rows;
  const int64_t words = words_of(rows.depth), bytes = row_bytes(rows.depth);
  Ints sums[kCount][kVectors];
  begin_sums<kCount>(op, row, column, sums);
  const char *first = rows.values + row * bytes, *second = first + 3 * bytes, *third = second + 3 * bytes;
  _Pragma("GCC unroll 4") for (int64_t k = 0; k < words; ++k) {
    add_column<Words, kCount>(first, second, third, bytes, panel, sums);
    first += sizeof(int32_t);
    second += sizeof(int32_t);
    third += sizeof(int32_t);
    panel += kColumns;
  }
  scale<kCount>(op, row, column, sums);
}

struct Tiles {
  static void multiply(const Int8Product& op, int64_t row, int64_t count, const int32_t* panel, int64_t column) {
    with_rows(count, [&]<int kCount> { tile<kCount>(op, row, panel, column); });
  }
};
#endif

void int8_product(const Int8Product& op, int64_t begin, int64_t end) {
  const int64_t panel_size = words_of(op.rows.depth) * kColumns;
  const int32_t* panel = op.packed + op.first_column / kColumns * panel_size;
  Tiles tiles;
  for (int64_t column = op.first_column; column < op.last_column; column += kColumns, panel += panel_size) {
    for (int64_t row = begin; row < end; row += kRows) {
      tiles.multiply(op, row, at_most(kRows, end - row), panel, column);
    }
  }
}

void pack_int8_panels(const int8_t* weights,
                      int64_t row_stride,
                      int64_t first,
                      int64_t count,
                      int64_t depth,
                      int32_t* packed,
                      int32_t* sums) {
  const int64_t words = words_of(depth), whole_words = depth / Words::kValues;
  for (int64_t j = 0; j < (count + kColumns - 1) / kColumns * kColumns; ++j) {
    int32_t* to = packed + j / kColumns * kColumns * words + j % kColumns;
    const int8_t* row = weights + (first + at_most(j, count - 1)) * row_stride;  // behind the last one nobody looks
    int32_t sum = 0;
    for (int64_t k = 0; k < depth; ++k) {
      sum += row[k];
    }
    sums[j] = sum;
    for (int64_t k = 0; k < whole_words; ++k) {
      to[k * kColumns] = Words::of_weights(row + k * Words::kValues);
    }
    if (whole_words < words) {
      int8_t last[Words::kValues] = {};
      for (int64_t k = whole_words * Words::kValues; k < depth; ++k) {
        last[k % Words::kValues] = row[k];
      }
      to[whole_words * kColumns] = Words::of_weights(last);
    }
  }
}

}  // namespace

const Int8Kernels int8_kernels = {.tile_rows = kRows,
                                  .panel_columns = kColumns,
                                  .row_bytes = row_bytes,
                                  .quantize_rows = quantize_rows,
                                  .pack_panels = pack_int8_panels,
                                  .rows = int8_product};

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
