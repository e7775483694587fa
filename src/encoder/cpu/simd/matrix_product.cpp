#include <initializer_list>

#include "encoder/cpu/simd/amx_tiles.h"
#include "encoder/cpu/simd/product_tile.h"
#include "encoder/cpu/simd/rows.h"
#include "encoder/cpu/simd/table.h"
#include "kernels/cpu/simd/convert.h"

namespace mezzo::encoder::cpu::MEZZO_SIMD {
namespace {

// Matrices are multiplied word by word. A word has the size of a float. It is a float32, or two bfloat16 that follow
// each other along the depth, if the processor multiplies bfloat16.

// A panel of b, kDepth rows of it, stays near while the rows of a pass by, which lie in L2. Twice
// that makes fewer passes over the output and is 2 % faster, but longer sums are less accurate.
constexpr int64_t kDepth = 384;

constexpr int kRows = kTileRows, kVectors = kTileVectors;
constexpr int64_t kColumns = kTileColumns;

constexpr int64_t kRowsAhead = 8;       // rows are read ahead while others are packed, which lie far from each other
constexpr int64_t kPanelsATime = 4;     // filled by neighbouring cache lines of each row
constexpr int64_t kStripe = 4 * kRows;  // rows packed at a time: more would compete for the same places in the cache

constexpr int64_t kLine = 16;  // words of a cache line
// A line is read ahead every kLineSteps steps: a panel during the rows of a whole block.
constexpr int64_t kLineSteps = kLargestRowBlock / kRows / (kColumns / kLine);
static_assert(kLineSteps % 4 == 0, "steps are unrolled by 4");

struct FloatWords {
  static constexpr int64_t kValues = 1;  ///< of a word
  static constexpr bool kInAmx = false;
#ifdef __AVX512BF16__
  static constexpr Element kRounded = Element::kHalf;  ///< what tiles round their sums into themselves
#else
  static constexpr Element kRounded = Element::kBFloat16;
#endif

  static Floats add_product(Floats sum, const char* left, Floats right) {
    float value;
    __builtin_memcpy(&value, left, sizeof value);
    return sum + value * right;
  }

  /// Whether words lie in memory as they are.
  static bool are(Element element) { return element == Element::kFloat; }

  /// Those of `count` values.
  static void read_run(ConstSpan from, int64_t count, float* to) {
    const float* values = read(from, 0, count, to);
    if (values != to) {
      __builtin_memcpy(to, values, static_cast<std::size_t>(count) * sizeof(float));
    }
  }

  /// Word k of `count` columns side by side, whose values lie `stride` apart.
  static const float* read_across(
      ConstSpan from, int64_t stride, int64_t /*depth*/, int64_t k, int64_t count, float* scratch) {
    read_ahead(tail(from, (k + kRowsAhead) * stride), count);
    return read(from, k * stride, count, scratch);
  }
};

#ifdef __AVX512BF16__
/// Subnormal numbers count as zeros, as in LibTorch's products with the same instructions.
struct BFloat16Pairs {
  static constexpr int64_t kValues = 2;
  static constexpr Element kRounded = Element::kBFloat16;
#ifdef __AMX_BF16__
  static constexpr bool kInAmx = true;
#else
  static constexpr bool kInAmx = false;
#endif

  static Floats add_product(Floats sum, const char* left, Floats right) {
    int32_t pair;
    __builtin_memcpy(&pair, left, sizeof pair);
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)right);
  }

  static bool are(Element /*element*/) { return true; }

  static void read_run(ConstSpan from, int64_t count, float* to) {
    if (count % 2 != 0) {
      to[count / 2] = 0;
    }
    __builtin_memcpy(to, from.data, static_cast<std::size_t>(count) * sizeof(uint16_t));
  }

  static const float* read_across(
      ConstSpan from, int64_t stride, int64_t depth, int64_t k, int64_t count, float* scratch) {
    for (const int64_t ahead : {2 * (k + kRowsAhead), 2 * (k + kRowsAhead) + 1}) {
      read_ahead(tail(from, ahead * stride), count);
    }
    const auto *first = static_cast<const uint16_t*>(from.data) + 2 * k * stride, *second = first + stride;
    if (2 * k + 1 < depth) {
      for (int64_t i = 0; i < count; ++i) {
        scratch[i] = bits_to_float(uint32_t{first[i]} | uint32_t{second[i]} << 16);
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        scratch[i] = bits_to_float(first[i]);
      }
    }
    return scratch;
  }
};
#endif

/// Calls body with the kind of words that products of such elements are made of.
template <class Body>
inline void with_words(Element element, const Body& body) {
#ifdef __AVX512BF16__
  if (element == Element::kBFloat16) {
    return body(BFloat16Pairs{});
  }
#endif
  static_cast<void>(element);
  body(FloatWords{});
}

template <class Words>
int64_t words_of(int64_t depth) {
  return (depth + Words::kValues - 1) / Words::kValues;
}

/// Rows of a: word (i, k) at data[i * row + k * step], all in bytes.
struct Rows {
  const char* data;
  int64_t row, step;
};

/// Memory of a tile: rows of sums so far, which are added to or overwritten, and the rounded total, if it is rounded.
struct Place {
  float* sums;
  char* rounded;
  int64_t stride;  ///< in elements of either
};

/// a b or sums + a b, kCount rows and one panel; b [depth, kColumns] words. The result goes to the
/// sums, or rounded to its place where kResult is not float32. Asks for a cache line from `ahead`
/// on every kLineSteps steps.
template <class Words, bool kAdd, Element kResult, int kCount>
[[gnu::noinline]] void tile(const Rows& a, const float* b, int64_t depth, const Place& c, const float* ahead) {
  constexpr bool kRounds = kResult != Element::kFloat;
  constexpr int64_t kBytes = Elements<kResult>::kBytes;
  const int64_t stride = c.stride;
  char* result = kRounds ? c.rounded : reinterpret_cast<char*>(c.sums);
  Floats sums[kCount][kVectors];
  MEZZO_UNROLL for (int i = 0; i < kCount; ++i) {
    __builtin_prefetch(result + i * stride * kBytes, 1);
    MEZZO_UNROLL for (int v = 0; v < kVectors; ++v) { sums[i][v] = Floats{}; }
  }
  const int64_t row = a.row, step = a.step;
  const char *first = a.data, *second = first + 3 * row, *third = second + 3 * row;
  const auto next = [&] {
    add_column<Words, kCount>(first, second, third, row, b, sums);
    first += step;
    second += step;
    third += step;
    b += kColumns;
  };
  int64_t k = 0;
  for (; k + kLineSteps <= depth; k += kLineSteps) {
    __builtin_prefetch(ahead);
    ahead += kLine;
    _Pragma("GCC unroll 4") for (int j = 0; j < kLineSteps; ++j) { next(); }
  }
  for (; k < depth; ++k) {
    next();
  }
  MEZZO_UNROLL for (int i = 0; i < kCount; ++i) {
    MEZZO_UNROLL for (int v = 0; v < kVectors; ++v) {
      const Floats total = kAdd ? load(c.sums + i * stride + v * kWidth) + sums[i][v] : sums[i][v];
      Elements<kResult>::store(result, i * stride + v * kWidth, All{}, total);
    }
  }
}

template <class Words, bool kAdd, Element kResult = Element::kFloat>
void tile_of(int64_t count, const Rows& a, const float* b, int64_t depth, const Place& c, const float* ahead) {
  with_rows(count, [&]<int kCount> { tile<Words, kAdd, kResult, kCount>(a, b, depth, c, ahead); });
}

/// to[j * stride + i] = word j of row i of `from`, 8 of each; rows lie `row` bytes apart.
void transpose_8x8(const char* from, int64_t row, float* to, int64_t stride) {
  __m256 r[8], s[8];
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(from + i * row));
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

/// `count` rows that lie in memory as columns do, one after another, for AMX. Up to 7 rows of anything follow.
template <class Words>
void pack_stripe_by_rows(ConstSpan rows, int64_t stride, int64_t depth, int64_t words, int64_t count, float* packed) {
  float columns[8][kStripe] = {};
  for (int64_t k = 0; k < words; k += 8) {
    const int64_t length = at_most(8, words - k);
    for (int64_t j = 0; j < length; ++j) {
      Words::read_across(rows, stride, depth, k + j, count, columns[j]);
    }
    for (int64_t i = 0; i < count; i += 8) {
      float* to = packed + i * words + k;
      if (length == 8) {
        transpose_8x8(reinterpret_cast<const char*>(columns[0] + i), sizeof columns[0], to, words);
        continue;
      }
      for (int64_t j = 0; j < 8 * length; ++j) {
        to[j % 8 * words + j / 8] = columns[j / 8][i + j % 8];
      }
    }
  }
}

/// `count` rows that lie in memory as columns do, in groups of kRows, whose words of
/// one column are side by side.
template <class Words>
[[gnu::always_inline]] inline void pack_stripe(
    ConstSpan rows, int64_t stride, int64_t depth, int64_t words, int64_t count, float* packed) {
  if constexpr (Words::kInAmx) {
    return pack_stripe_by_rows<Words>(rows, stride, depth, words, count, packed);
  }
  float column[kStripe];
  for (int64_t k = 0; k < words; ++k) {
    const float* values = Words::read_across(rows, stride, depth, k, count, column);
    float* to = packed + k * kRows;
    int64_t i = 0;
    for (; i + kRows <= count; i += kRows, to += words * kRows) {
      __builtin_memcpy(to, values + i, kRows * sizeof(float));
    }
    for (int64_t j = i; j < count; ++j) {
      to[j - i] = values[j];
    }
  }
}

/// Rows `begin` ... of a, [M, depth]; words `k` ... `end` - 1: in place if they can be
/// read so, else in `packed`.
template <class Words>
Rows rows_of(const MatrixView& a, int64_t depth, int64_t begin, int64_t count, int64_t k, int64_t end, float* packed) {
  constexpr auto kWord = static_cast<int64_t>(sizeof(float));
  const int64_t first = k * Words::kValues, words = end - k;
  const auto span = tail(a.elements, begin * a.row + first * a.column);
  if (a.column == 1) {
    if (Words::are(span.element) && end * Words::kValues <= depth) {
      return {static_cast<const char*>(span.data), a.row * size_of(span.element), kWord};
    }
    for (int64_t i = 0; i < count; ++i) {
      Words::read_run(tail(span, i * a.row), at_most(words * Words::kValues, depth - first), packed + i * words);
    }
    return {reinterpret_cast<const char*>(packed), words * kWord, kWord};
  }
  for (int64_t i = 0; i < count; i += kStripe) {
    const auto stripe = tail(span, i);
    if (i + kStripe <= count) {
      pack_stripe<Words>(stripe, a.column, depth - first, words, kStripe, packed + i * words);
    } else {
      pack_stripe<Words>(stripe, a.column, depth - first, words, count - i, packed + i * words);
    }
  }
  return {reinterpret_cast<const char*>(packed), Words::kInAmx ? words * kWord : kWord,
          Words::kInAmx ? kWord : kRows * kWord};
}

/// At most kPanelsATime panels of rows of b.
template <class Words>
void pack_rows(ConstSpan b, int64_t stride, int64_t columns, int64_t depth, float* packed) {
  float converted[kPanelsATime * kColumns];
  const int64_t words = words_of<Words>(depth);
  for (int64_t k = 0; k < words; ++k) {
    const float* row = Words::read_across(b, stride, depth, k, columns, converted);
    float* to = packed + k * kColumns;
    int64_t j = 0;
    for (; j + kColumns <= columns; j += kColumns, to += words * kColumns) {
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
template <class Words>
void pack_columns(ConstSpan b, int64_t stride, int64_t columns, int64_t depth, float* packed) {
  constexpr int64_t kRun = 64, kBytes = sizeof(float);
  float run[8 * kRun];
  const int64_t words = words_of<Words>(depth);
  for (int64_t j = 0; j < kColumns; j += 8) {
    for (int64_t k = 0; k < words; k += kRun) {
      const int64_t length = at_most(kRun, words - k), first = k * Words::kValues;
      const int64_t values = at_most(length * Words::kValues, depth - first);
      const char* rows = reinterpret_cast<const char*>(run);
      int64_t row = kRun * kBytes;
      if (Words::are(b.element) && j + 8 <= columns && values == length * Words::kValues) {
        rows = static_cast<const char*>(tail(b, j * stride + first).data);
        row = stride * size_of(b.element);
      } else {
        for (int64_t i = 0; i < 8; ++i) {
          if (j + i < columns) {
            Words::read_run(tail(b, (j + i) * stride + first), values, run + i * kRun);
          } else {
            __builtin_memset(run + i * kRun, 0, static_cast<std::size_t>(length) * sizeof(float));
          }
        }
      }
      float* to = packed + k * kColumns + j;
      int64_t d = 0;
      for (; d + 8 <= length; d += 8) {
        transpose_8x8(rows + d * kBytes, row, to + d * kColumns, kColumns);
      }
      for (; d < length; ++d) {
        for (int64_t i = 0; i < 8; ++i) {
          __builtin_memcpy(to + d * kColumns + i, rows + i * row + d * kBytes, sizeof(float));
        }
      }
    }
  }
}

void pack_panels(const MatrixView& b, int64_t first_column, int64_t columns, int64_t depth, float* packed) {
  const auto span = tail(b.elements, first_column * b.column);
  const int64_t width = b.column == 1 ? kPanelsATime * kColumns : kColumns;
  with_words(span.element, [&]<class Words>(Words) {
    for (int64_t first = 0; first < columns; first += width, packed += width * words_of<Words>(depth)) {
      const auto columns_now = at_most(width, columns - first);
      if (b.column == 1) {
        pack_rows<Words>(tail(span, first), b.row, columns_now, depth, packed);
      } else {
        pack_columns<Words>(tail(span, first * b.column), b.column, columns_now, depth, packed);
      }
    }
  });
}

int64_t panel_rows(Element element, int64_t depth) {
  int64_t words = 0;
  with_words(element, [&]<class Words>(Words) { words = words_of<Words>(depth); });
  return words;
}

int64_t product_scratch(int64_t columns) {
  return kLargestRowBlock * kDepth + kRows * kColumns + kLargestRowBlock * columns;
}

/// Rows of the output, and panels of b from `columns` columns on.
struct Target {
  float* sums;  ///< [count, columns], rows `stride` apart
  Span output;  ///< the same: `sums`, or their rounded values
  int64_t count, columns, stride;
  float* edge;  ///< [kRows, kColumns]
};

/// What a tile of `height` rows, `width` wide, adds to the sums from element `first` on, or overwrites them with.
template <Element kResult>
void put(const float* tile, int64_t height, int64_t width, bool adds, int64_t first, const Target& target) {
  for (int64_t r = 0; r < height; ++r, tile += kColumns, first += target.stride) {
    float* c = target.sums + first;
    for (int64_t j = 0; j < width; ++j) {
      c[j] = adds ? c[j] + tile[j] : tile[j];
    }
    if constexpr (kResult != Element::kFloat) {
      write(c, target.output, first, width);
    }
  }
}

/// sums = or += rows of a times panels of b [depth, kColumns], `panel_size` from one to the next.
/// Where kResult is not float32, sums are complete and go to the output.
template <class Words, Element kResult>
void multiply(
    const Rows& rows, const float* panel, int64_t panel_size, int64_t depth, bool adds, const Target& target) {
  const auto& [sums, output, count, columns, stride, edge] = target;
  const int64_t next_rows = rows.step == sizeof(float) ? kRows * rows.row : depth * rows.step;
  for (int64_t column = 0; column < columns; column += kColumns, panel += panel_size) {
    const float* ahead = panel + panel_size;
    const int64_t width = at_most(kColumns, columns - column);
    Rows group = rows;
    for (int64_t i = 0; i < count; i += kRows, group.data += next_rows, ahead += depth / kLineSteps * kLine) {
      const int64_t height = at_most(kRows, count - i), first = i * stride + column;
      if (width == kColumns) {
        const Place c{sums + first, static_cast<char*>(output.data) + first * Elements<kResult>::kBytes, stride};
        adds ? tile_of<Words, true, kResult>(height, group, panel, depth, c, ahead)
             : tile_of<Words, false, kResult>(height, group, panel, depth, c, ahead);
        continue;
      }
      tile_of<Words, false>(height, group, panel, depth, {edge, nullptr, kColumns}, ahead);
      put<kResult>(edge, height, width, adds, first, target);
    }
  }
}

#ifdef __AMX_BF16__
/// multiply() of pairs of bfloat16 in the tile registers of AMX.
template <Element kResult>
void multiply_in_amx(
    const Rows& rows, const float* panel, int64_t panel_size, int64_t depth, bool adds, const Target& target) {
  AmxTiles tiles;
  for (int64_t column = 0; column < target.columns; column += kColumns, panel += panel_size) {
    for (int64_t i = 0; i < target.count; i += kAmxRows) {
      const int64_t height = at_most(kAmxRows, target.count - i);
      tiles.multiply<false>(rows.data + i * rows.row, rows.row, height, panel, depth);
      put<kResult>(tiles.sums[0], height, at_most(kColumns, target.columns - column), adds, i * target.stride + column,
                   target);
    }
  }
}
#endif

/// Calls body with the elements that such words are rounded into at once, if `element` is one
/// of them, or with float32.
template <class Words, class Body>
void with_result(Element element, const Body& body) {
  if (element == Words::kRounded) {
    body.template operator()<Words::kRounded>();
  } else {
    body.template operator()<Element::kFloat>();
  }
}

void product_rows(const ProductRows& op, int64_t begin, int64_t end, float* scratch) {
  const int64_t count = end - begin, stride = op.stride, first = begin * stride + op.first_column;
  float *packed = scratch, *edge = packed + kLargestRowBlock * kDepth;
  float* sums = place(op.output, first, edge + kRows * kColumns);
  const Span output{static_cast<char*>(op.output.data) + first * size_of(op.output.element), op.output.element};
  const Target target{sums, output, count, op.columns, stride, edge};
  const auto for_rows = [&](const auto& body) {
    for (int64_t i = 0; i < count; ++i) {
      body(i * stride, sums + i * stride);
    }
  };
  bool adds = op.adds, is_rounded = false;
  if (adds) {
    for_rows([&](int64_t row, float* to) { read(output, row, op.columns, to); });
  }
  for (int64_t t = 0; t < op.num_terms; ++t) {
    const ProductTerm& term = op.terms[t];
    with_words(term.a.elements.element, [&]<class Words>(Words) {
      const int64_t words = words_of<Words>(term.depth), blocks = (words + kDepth - 1) / kDepth;
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t k = words * block / blocks, block_end = words * (block + 1) / blocks;
        const Rows rows = rows_of<Words>(term.a, term.depth, begin, count, k, block_end, packed);
        const bool is_last = t + 1 == op.num_terms && block + 1 == blocks;
        with_result<Words>(is_last ? output.element : Element::kFloat, [&]<Element kResult> {
          const float* panel = term.packed + op.first_column * words + k * kColumns;
#ifdef __AMX_BF16__
          if constexpr (Words::kInAmx) {
            multiply_in_amx<kResult>(rows, panel, words * kColumns, block_end - k, adds, target);
          } else
#endif
          {
            multiply<Words, kResult>(rows, panel, words * kColumns, block_end - k, adds, target);
          }
          is_rounded = kResult != Element::kFloat;
        });
        adds = true;
      }
    });
  }
  if (!adds) {  // no terms, or none with depth
    for_rows([&](int64_t /*row*/, float* to) {
      __builtin_memset(to, 0, static_cast<std::size_t>(op.columns) * sizeof(float));
    });
  }
  if (!is_rounded) {
    for_rows([&](int64_t row, float* from) { write(from, output, row, op.columns); });
  }
}

}  // namespace

#ifdef __AMX_BF16__
const ProductKernels product_kernels = {.tile_rows = kAmxRows,
#else
const ProductKernels product_kernels = {.tile_rows = kRows,
#endif
                                        .panel_columns = kColumns,
                                        .panel_rows = panel_rows,
                                        .pack_panels = pack_panels,
                                        .scratch = product_scratch,
                                        .rows = product_rows};

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
