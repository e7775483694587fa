#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// AMX by its specification (Intel, Architectures Software Developer's Manual, volume 2), for processors without it. The
// compiler includes this file before a kernel's source. What the processor answers with an exception ends the program.

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)
#define __AMX_TILE__ 1
#define __AMX_BF16__ 1
#define __AMX_INT8__ 1
#endif

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbusd
#define _tile_loadconfig amx_emulation::load_config
#define _tile_release amx_emulation::release
#define _tile_loadd amx_emulation::load
#define _tile_stored amx_emulation::store
#define _tile_zero amx_emulation::zero
#define _tile_dpbf16ps amx_emulation::multiply_bf16
#define _tile_dpbusd amx_emulation::multiply_bytes

namespace amx_emulation {
namespace {

struct Register {
  int rows, row_bytes;
  uint8_t data[16][64];
};

struct Registers {
  bool are_configured = false;
  Register numbered[8] = {};
};

thread_local Registers registers;

void require(bool is_so, const char* condition) {
  if (!is_so) {
    fprintf(stderr, "AMX: exception, because this does not hold: %s\n", condition);
    abort();
  }
}
#define MEZZO_REQUIRE(condition) require(condition, #condition)

[[maybe_unused]] void load_config(const void* memory) {
  const auto* config = static_cast<const uint8_t*>(memory);
  MEZZO_REQUIRE(config[0] == 1);
  registers = {};
  for (int i = 1; i < 16; ++i) {
    MEZZO_REQUIRE(config[i] == 0);
  }
  for (int tile = 0; tile < 16; ++tile) {
    const int bytes = config[16 + 2 * tile] + 256 * config[17 + 2 * tile], rows = config[48 + tile];
    MEZZO_REQUIRE(bytes <= 64 && rows <= 16 && (bytes == 0) == (rows == 0) && (tile < 8 || rows == 0));
    if (tile < 8) {
      registers.numbered[tile].rows = rows;
      registers.numbered[tile].row_bytes = bytes;
    }
  }
  registers.are_configured = true;
}

[[maybe_unused]] void release() { registers = {}; }

Register& numbered(int number) {
  MEZZO_REQUIRE(registers.are_configured);
  MEZZO_REQUIRE(registers.numbered[number].rows > 0);
  return registers.numbered[number];
}

[[maybe_unused]] void zero(int number) {
  Register& tile = numbered(number);
  memset(tile.data, 0, sizeof tile.data);
}

[[maybe_unused]] void load(int number, const void* base, long stride) {
  zero(number);
  Register& tile = numbered(number);
  for (int i = 0; i < tile.rows; ++i) {
    memcpy(tile.data[i], static_cast<const char*>(base) + i * stride, static_cast<size_t>(tile.row_bytes));
  }
}

[[maybe_unused]] void store(int number, void* base, long stride) {
  const Register& tile = numbered(number);
  for (int i = 0; i < tile.rows; ++i) {
    memcpy(static_cast<char*>(base) + i * stride, tile.data[i], static_cast<size_t>(tile.row_bytes));
  }
}

void check_shapes(const Register& sums, const Register& left, const Register& right) {
  MEZZO_REQUIRE(&sums != &left && &sums != &right && &left != &right);
  MEZZO_REQUIRE(sums.row_bytes % 4 == 0 && left.row_bytes % 4 == 0);
  MEZZO_REQUIRE(left.rows == sums.rows && right.rows == left.row_bytes / 4 && right.row_bytes == sums.row_bytes);
}

template <class Word>
Word& at(Register& tile, int row, int index) {
  return reinterpret_cast<Word __attribute__((may_alias))*>(tile.data[row])[index];
}

float without_subnormal(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits = (bits & 0x7F800000) != 0 ? bits : bits & 0x80000000;
  memcpy(&x, &bits, sizeof bits);
  return x;
}

float to_float(uint16_t bfloat16) {
  const uint32_t bits = uint32_t{bfloat16} << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return without_subnormal(x);
}

/// TDPBF16PS: even and odd values of the depth are summed apart, each product fused with its addition. Their total is
/// then added to the sums.
[[maybe_unused]] void multiply_bf16(int to, int a, int b) {
  Register &sums = numbered(to), &left = numbered(a), &right = numbered(b);
  check_shapes(sums, left, right);
  for (int m = 0; m < sums.rows; ++m) {
    float products[32] = {};
    for (int k = 0; k < left.row_bytes / 4; ++k) {
      for (int n = 0; n < sums.row_bytes / 2; ++n) {
        products[n] = without_subnormal(__builtin_fmaf(to_float(at<uint16_t>(left, m, 2 * k + n % 2)),
                                                       to_float(at<uint16_t>(right, k, n)), products[n]));
      }
    }
    for (int n = 0; n < sums.row_bytes / 4; ++n) {
      float& sum = at<float>(sums, m, n);
      sum = without_subnormal(without_subnormal(sum) + without_subnormal(products[2 * n] + products[2 * n + 1]));
    }
  }
}

/// TDPBUSD: the left bytes have no sign, the right ones have one.
[[maybe_unused]] void multiply_bytes(int to, int a, int b) {
  Register &sums = numbered(to), &left = numbered(a), &right = numbered(b);
  check_shapes(sums, left, right);
  for (int m = 0; m < sums.rows; ++m) {
    for (int k = 0; k < left.row_bytes / 4; ++k) {
      for (int n = 0; n < sums.row_bytes / 4; ++n) {
        for (int i = 0; i < 4; ++i) {
          at<int32_t>(sums, m, n) += at<uint8_t>(left, m, 4 * k + i) * at<int8_t>(right, k, 4 * n + i);
        }
      }
    }
  }
}

}  // namespace
}  // namespace amx_emulation
