#pragma once

#include "encoder/cpu/simd/product_tile.h"

#ifdef __AMX_BF16__

/// The inner loop of products in the tile registers of AMX, for bfloat16 and for integers.
namespace mezzo::encoder::cpu::MEZZO_SIMD {

// A tile register has up to 16 rows of 16 words. Six hold sums, of two groups of rows and three of columns. Register 6
// holds words of the left side, and register 7 a part of a panel.
constexpr int64_t kAmxTile = 16, kAmxRows = 2 * kAmxTile;
static_assert(kTileColumns == 3 * kAmxTile);

/// What `memory` points to is written before this line. The intrinsics of gcc 12 do not tell the compiler what they
/// read.
inline void finish_writes(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

// A register is a part of an instruction's name, so these are no functions.
#define MEZZO_AMX_MULTIPLY(sum) \
  if constexpr (kAreBytes) {    \
    _tile_dpbusd(sum, 6, 7);    \
  } else {                      \
    _tile_dpbf16ps(sum, 6, 7);  \
  }
#define MEZZO_AMX_ADD(sum, column)                \
  _tile_loadd(7, b + (column) * kRow, kPanelRow); \
  MEZZO_AMX_MULTIPLY(sum)

/// The tile registers of this thread. They are free again at the end of the scope.
class AmxTiles {
 public:
  AmxTiles() = default;
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
  ~AmxTiles() { _tile_release(); }

  /// sums = `count` rows on the left, `row` bytes apart, times one panel.
  /// @tparam kAreBytes  words are 4 bytes, without a sign on the left, or else 2 bfloat16
  template <bool kAreBytes>
  [[gnu::noinline]] void multiply(const char* left, int64_t row, int64_t count, const void* panel, int64_t words) {
    // An odd number of rows has its middle one in both groups.
    const int64_t rows = count > kAmxTile ? (count + 1) / 2 : count, second = count - rows;
    set_rows(rows);
    const auto add = [&](const char* a, int64_t a_row, const char* b) {
      _tile_loadd(6, a, a_row);
      MEZZO_AMX_ADD(0, 0)
      MEZZO_AMX_ADD(1, 1)
      MEZZO_AMX_ADD(2, 2)
      if (second > 0) {
        _tile_loadd(6, a + second * a_row, a_row);
        MEZZO_AMX_ADD(3, 0)
        MEZZO_AMX_ADD(4, 1)
        MEZZO_AMX_ADD(5, 2)
      }
    };
    finish_writes(left);
    zero();
    const char* right = static_cast<const char*>(panel);
    for (; words >= kAmxTile; words -= kAmxTile, left += kRow, right += kAmxTile * kPanelRow) {
      add(left, row, right);
    }
    if (words > 0) {
      alignas(kRow) char lefts[kAmxRows][kRow] = {}, rights[kAmxTile][kPanelRow] = {};
      for (int64_t i = 0; i < count; ++i) {
        __builtin_memcpy(lefts[i], left + i * row, static_cast<std::size_t>(words) * sizeof(float));
      }
      __builtin_memcpy(rights, right, static_cast<std::size_t>(words * kPanelRow));
      finish_writes(lefts);
      finish_writes(rights);
      add(lefts[0], kRow, rights[0]);
    }
    store(second);
  }

  /// Sets the rows of the registers of sums and of the left side. A new number zeroes all registers.
  void set_rows(int64_t rows) {
    if (rows == rows_) {
      return;
    }
    rows_ = rows;
    struct {
      uint8_t palette = 1, first_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } layout;
    for (int tile = 0; tile < 8; ++tile) {
      layout.row_bytes[tile] = kRow;
      layout.rows[tile] = static_cast<uint8_t>(tile == 7 ? kAmxTile : rows);
    }
    finish_writes(&layout);
    _tile_loadconfig(&layout);
  }

  static void zero() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
  }

  /// Copies the registers of sums to `sums`. @param second  first row of the second group, 0 without one
  void store(int64_t second) {
    _tile_stored(0, sums[0], kPanelRow);
    _tile_stored(1, sums[0] + kAmxTile, kPanelRow);
    _tile_stored(2, sums[0] + 2 * kAmxTile, kPanelRow);
    if (second > 0) {
      _tile_stored(3, sums[second], kPanelRow);
      _tile_stored(4, sums[second] + kAmxTile, kPanelRow);
      _tile_stored(5, sums[second] + 2 * kAmxTile, kPanelRow);
    }
  }

  alignas(64) float sums[kAmxRows][kTileColumns];  ///< float32, or int32 in the same memory

 private:
  static constexpr int64_t kRow = kAmxTile * sizeof(float), kPanelRow = kTileColumns * sizeof(float);  // bytes

  int64_t rows_ = 0;
};

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD

#endif
