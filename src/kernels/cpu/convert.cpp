#include "kernels/cpu/convert.h"

#include <algorithm>
#include <bit>

#include "kernels/cpu/philox_lanes.h"
#include "kernels/cpu/vector_clones.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace mezzo::kernels::cpu {
namespace {

constexpr int kDraws = 8 * kPhiloxLanes;  // half-words of one call of philox_lanes

/// `bits` of a float32 plus `below_half` or so, cut to bfloat16; a NaN keeps its sign and becomes quiet.
[[gnu::always_inline]] inline uint16_t cut(uint32_t bits, uint32_t addend) {
  const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return static_cast<uint16_t>((is_nan ? bits | 0x400000 : bits + addend) >> 16);
}

MEZZO_VECTOR_CLONES void draw(uint64_t first_block, const RandomKey& key, uint16_t* draws) {
  uint32_t words[4][kPhiloxLanes];
  philox_lanes(first_block, key, words);
  for (int lane = 0; lane < kPhiloxLanes; ++lane) {
    for (int word = 0; word < 4; ++word) {
      draws[8 * lane + 2 * word] = static_cast<uint16_t>(words[word][lane]);
      draws[8 * lane + 2 * word + 1] = static_cast<uint16_t>(words[word][lane] >> 16);
    }
  }
}

MEZZO_VECTOR_CLONES void add_and_cut(const float* in, const uint16_t* addends, at::BFloat16* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i].x = cut(std::bit_cast<uint32_t>(in[i]), addends[i]);
  }
}

#ifdef __x86_64__
const bool kHasF16c = __builtin_cpu_supports("f16c") && __builtin_cpu_supports("avx");

[[gnu::target("avx,f16c")]] int64_t to_float_f16c(const at::Half* in, float* out, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
  }
  return i;
}

[[gnu::target("avx,f16c")]] int64_t from_float_f16c(const float* in, at::Half* out, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  return i;
}
#endif

}  // namespace

MEZZO_VECTOR_CLONES void to_float(const at::BFloat16* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(in[i].x) << 16);
  }
}

MEZZO_VECTOR_CLONES void from_float(const float* in, at::BFloat16* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(in[i]);
    out[i].x = cut(bits, 0x7FFF + ((bits >> 16) & 1));
  }
}

void to_float(const at::Half* in, float* out, int64_t count) {
  int64_t i = 0;
#ifdef __x86_64__
  i = kHasF16c ? to_float_f16c(in, out, count) : 0;
#endif
  std::copy(in + i, in + count, out + i);
}

void from_float(const float* in, at::Half* out, int64_t count) {
  int64_t i = 0;
#ifdef __x86_64__
  i = kHasF16c ? from_float_f16c(in, out, count) : 0;
#endif
  std::copy(in + i, in + count, out + i);
}

void round_stochastically(const float* in, at::BFloat16* out, int64_t first, int64_t count, const RandomKey& key) {
  uint16_t draws[kDraws];
  for (int64_t i = 0; i < count; i += kDraws) {
    draw(static_cast<uint64_t>(first + i) / 8, key, draws);
    add_and_cut(in + i, draws, out + i, std::min<int64_t>(kDraws, count - i));
  }
}

}  // namespace mezzo::kernels::cpu
