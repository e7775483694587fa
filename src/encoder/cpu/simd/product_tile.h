#pragma once

#include "encoder/cpu/simd/table.h"

/// The inner loop of all products with packed panels, for floats and for integers.
namespace mezzo::encoder::cpu::MEZZO_SIMD {

#define MEZZO_UNROLL _Pragma("GCC unroll 32")

// A tile of the output. Most registers hold sums (AVX2 has 16, AVX-512 has 32), the others a row of the panel and one
// word of the left side.
#ifdef __AVX512F__
constexpr int kTileRows = 8, kTileVectors = 3;
#else
constexpr int kTileRows = 6, kTileVectors = 2;
#endif
constexpr int64_t kTileColumns = kTileVectors * kWidth;

/// One word of each of kCount rows times one row of a panel, added to the sums. `first`, `second` and `third` point to
/// rows 0, 3 and 6, `row` bytes apart from the next: three pointers stay in registers, eight do not.
/// @param panel  kTileColumns words
template <class Words, int kCount, class Word, class Sums>
[[gnu::always_inline]] inline void add_column(const char* first,
                                              const char* second,
                                              const char* third,
                                              int64_t row,
                                              const Word* panel,
                                              Sums (&sums)[kCount][kTileVectors]) {
  Sums right[kTileVectors];
  MEZZO_UNROLL for (int v = 0; v < kTileVectors; ++v) {
    __builtin_memcpy(&right[v], panel + v * kWidth, sizeof right[v]);
  }
  MEZZO_UNROLL for (int i = 0; i < kCount; ++i) {
    const char* left = (i < 3 ? first : i < 6 ? second : third) + i % 3 * row;
    MEZZO_UNROLL for (int v = 0; v < kTileVectors; ++v) { sums[i][v] = Words::add_product(sums[i][v], left, right[v]); }
  }
}

/// Calls `tile.operator()<kCount>()` with kCount = `count`, at most kTileRows.
template <int kCount = kTileRows, class Tile>
[[gnu::always_inline]] inline void with_rows(int64_t count, const Tile& tile) {
  if constexpr (kCount > 1) {
    if (count < kCount) {
      return with_rows<kCount - 1>(count, tile);
    }
  }
  tile.template operator()<kCount>();
}

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
