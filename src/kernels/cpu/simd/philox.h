#pragma once

#include "kernels/cpu/simd/simd.h"
#include "kernels/philox.h"
#include "kernels/random_key.h"

/// Philox::generate for kWidth blocks side by side.
namespace mezzo::kernels::cpu::MEZZO_SIMD {

struct WideProduct {
  Bits high, low;
};

/// x * factor, high and low words apart.
inline WideProduct wide_product(Bits x, uint32_t factor) {
#if defined(__AVX512F__)
  constexpr auto kOddWords = static_cast<_MM_PERM_ENUM>(0xF5), kEvenWords = static_cast<_MM_PERM_ENUM>(0xA0);
  const __m512i factors = _mm512_set1_epi32(static_cast<int>(factor));
  const __m512i odd_x = _mm512_maskz_shuffle_epi32(0xFFFF, (__m512i)x, kOddWords);
  const __m512i even = _mm512_maskz_mul_epu32(0xFF, (__m512i)x, factors),
                odd = _mm512_maskz_mul_epu32(0xFF, odd_x, factors);
  return {(Bits)_mm512_mask_shuffle_epi32(odd, 0x5555, even, kOddWords),
          (Bits)_mm512_mask_shuffle_epi32(even, 0xAAAA, odd, kEvenWords)};
#elif defined(__AVX2__)
  const __m256i factors = _mm256_set1_epi64x(factor);
  const __m256i even = _mm256_mul_epu32((__m256i)x, factors);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)x, 32), factors);
  return {(Bits)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA),
          (Bits)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA)};
#else
  WideProduct product;
  for (int64_t i = 0; i < kWidth; ++i) {
    const uint64_t words = uint64_t{x[i]} * factor;
    product.high[i] = static_cast<uint32_t>(words >> 32);
    product.low[i] = static_cast<uint32_t>(words);
  }
  return product;
#endif
}

inline Bits exclusive_or(Bits a, Bits b, Bits c) {
#ifdef __AVX512F__
  return (Bits)_mm512_ternarylogic_epi32((__m512i)a, (__m512i)b, (__m512i)c, 0x96);
#else
  return a ^ (b ^ c);
#endif
}

/// Four words of kWidth blocks: of[word][block].
struct RandomWords {
  Bits of[4];
};

/// Of the blocks {low, high, step, site}.
inline RandomWords philox(Bits low, Bits high, const RandomKey& key) {
  Bits c0 = low, c1 = high, c2 = Bits{} + key.step, c3 = Bits{} + key.site;
  Bits key0 = Bits{} + static_cast<uint32_t>(key.seed), key1 = Bits{} + static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < Philox::kRounds; ++round, key0 += Philox::kWeyl0, key1 += Philox::kWeyl1) {
    const WideProduct product0 = wide_product(c0, Philox::kMultiplier0);
    const WideProduct product1 = wide_product(c2, Philox::kMultiplier1);
    c0 = exclusive_or(product1.high, c1, key0);
    c1 = product1.low;
    c2 = exclusive_or(product0.high, c3, key1);
    c3 = product0.low;
  }
  return {{c0, c1, c2, c3}};
}

/// The words one block after the other.
inline RandomWords in_order(const RandomWords& words) {
  RandomWords ordered;
#if defined(__AVX2__) && !defined(__AVX512F__)
  const auto* w = words.of;
  const __m256i a = _mm256_unpacklo_epi32((__m256i)w[0], (__m256i)w[1]),
                b = _mm256_unpackhi_epi32((__m256i)w[0], (__m256i)w[1]);
  const __m256i c = _mm256_unpacklo_epi32((__m256i)w[2], (__m256i)w[3]),
                d = _mm256_unpackhi_epi32((__m256i)w[2], (__m256i)w[3]);
  const __m256i blocks04 = _mm256_unpacklo_epi64(a, c), blocks15 = _mm256_unpackhi_epi64(a, c);
  const __m256i blocks26 = _mm256_unpacklo_epi64(b, d), blocks37 = _mm256_unpackhi_epi64(b, d);
  ordered.of[0] = (Bits)_mm256_permute2x128_si256(blocks04, blocks15, 0x20);
  ordered.of[1] = (Bits)_mm256_permute2x128_si256(blocks26, blocks37, 0x20);
  ordered.of[2] = (Bits)_mm256_permute2x128_si256(blocks04, blocks15, 0x31);
  ordered.of[3] = (Bits)_mm256_permute2x128_si256(blocks26, blocks37, 0x31);
#else
  uint32_t in_turn[4 * kWidth];
  for (int64_t block = 0; block < kWidth; ++block) {
    for (int64_t word = 0; word < 4; ++word) {
      in_turn[4 * block + word] = words.of[word][block];
    }
  }
  __builtin_memcpy(&ordered, in_turn, sizeof ordered);
#endif
  return ordered;
}

/// 0, 1, 2, ...
inline Bits counting() {
  Bits numbers;
  for (int64_t i = 0; i < kWidth; ++i) {
    numbers[i] = static_cast<uint32_t>(i);
  }
  return numbers;
}

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
