#include "encoder/cpu/simd/amx_tiles.h"
#include "encoder/cpu/simd/table.h"
#include "kernels/cpu/simd/convert.h"

// The peak rate of the instructions of matrix products, with operands in registers only.
namespace mezzo::encoder::cpu::MEZZO_SIMD {
namespace {

// Independent of each other: more than an instruction's latency times the number that a processor begins in a cycle.
// On a Zen 5, 12 sums reach 0.93 of the rate that 16 or 24 reach in bfloat16. The sums and the two operands fit the
// registers: AVX2 has 16, AVX-512 has 32.
#ifdef __AVX512F__
constexpr int kSums = 24;
#else
constexpr int kSums = 12;
#endif

/// `x` may be anything from here on, so that nothing is computed ahead.
template <class Vector>
inline void forget(Vector& x) {
#if defined(__AVX512F__)
  asm volatile("" : "+v"(x));
#elif defined(__x86_64__)
  asm volatile("" : "+x"(x));
#else
  asm volatile("" : "+m"(x));
#endif
}

template <class Vector, class Multiply>
inline Vector run(int64_t rounds, Vector left, Vector right, const Multiply& multiply) {
  Vector sums[kSums] = {};
  forget(right);
  for (int64_t round = 0; round < rounds; ++round) {
    MEZZO_UNROLL for (Vector& sum : sums) {  // or the array would lie in memory
      forget(left);
      forget(sum);  // or all sums would be one, as they begin with equal values
      sum = multiply(sum, left, right);
    }
  }
  Vector total{};
  MEZZO_UNROLL for (const Vector& sum : sums) total += sum;
  return total;
}

// The operands are ones, so each sum counts its products.

#ifdef __AMX_BF16__
/// @param ones  a word
template <bool kAreBytes>
float in_amx(int64_t rounds, uint32_t ones) {
  AmxTiles tiles;
  tiles.set_rows(kAmxTile);
  for (int64_t i = 0; i < kAmxTile * kAmxTile; ++i) {
    __builtin_memcpy(tiles.sums[0] + i, &ones, sizeof ones);
  }
  finish_writes(tiles.sums);
  _tile_loadd(6, tiles.sums, kAmxTile * sizeof ones);
  _tile_loadd(7, tiles.sums, kAmxTile * sizeof ones);
  tiles.zero();
  for (int64_t round = 0; round < rounds; ++round) {
    MEZZO_AMX_MULTIPLY(0)
    MEZZO_AMX_MULTIPLY(1)
    MEZZO_AMX_MULTIPLY(2)
    MEZZO_AMX_MULTIPLY(3)
    MEZZO_AMX_MULTIPLY(4)
    MEZZO_AMX_MULTIPLY(5)
  }
  tiles.store(kAmxTile);
  float total = 0;
  for (const auto& row : tiles.sums) {
    for (const float& sum : row) {
      total += kAreBytes ? static_cast<float>(float_to_bits(sum)) : sum;
    }
  }
  return total;
}

float bfloat16_in_amx(int64_t rounds) { return in_amx<false>(rounds, 0x3F803F80); }
float int8_in_amx(int64_t rounds) { return in_amx<true>(rounds, 0x01010101); }

constexpr double kAmxWordsOfARound = 2.0 * kAmxRows * kTileColumns * kAmxTile;
#endif

float float32(int64_t rounds) {
  return sum(run(rounds, broadcast(1), broadcast(1), [](Floats sum, Floats a, Floats b) { return sum + a * b; }));
}

#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
float bfloat16(int64_t rounds) {
  const auto ones = (Floats)(Bits{} + 0x3F803F80u);
  return sum(run(rounds, ones, ones, [](Floats sum, Floats a, Floats b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }));
}
#endif

#if defined(__AVX2__) && !defined(__AMX_INT8__)
float int8(int64_t rounds) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  const Ints ones = Ints{} + 0x01010101;
#else
  const Ints ones = Ints{} + 0x00010001;
#endif
  const Ints sums = run(rounds, ones, ones, [](Ints sum, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVXVNNI__)
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#elif defined(__AVX512BW__)
    return sum + (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#else
    return sum + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
  });
  return sum(__builtin_convertvector(sums, Floats));
}
#endif

constexpr double kOperations = 2.0 * kSums * kWidth;  // of a round, in float32: a multiplication and an addition

}  // namespace

const PeakLoops peak_loops = {
    .float32 = {float32, kOperations},
#ifdef __AMX_BF16__
    .bfloat16 = {bfloat16_in_amx, 2 * kAmxWordsOfARound},
#elif defined(__AVX512BF16__)
    .bfloat16 = {bfloat16, 2 * kOperations},
#else
    .bfloat16 = {},
#endif
#ifdef __AMX_INT8__
    .int8 = {int8_in_amx, 4 * kAmxWordsOfARound},
#elif defined(__AVX512VNNI__) || defined(__AVXVNNI__)
    .int8 = {int8, 4 * kOperations},
#elif defined(__AVX2__)
    .int8 = {int8, 2 * kOperations},  // which are multiplied as int16
#else
    .int8 = {},
#endif
};

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
