#pragma once

#include "kernels/cpu/simd/elements.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/philox.h"

namespace mezzo::kernels::cpu::MEZZO_SIMD {

constexpr int64_t kMaskRun = 32;  // elements: 8 blocks of 4 words

/// kMaskRun elements, decided by the words of blocks {block + lane, high, step, site}: factors[i] becomes the dropout's
/// scale, or 0 where element 4 * block + i is dropped.
struct MaskRun {
  uint32_t block, high;
  float* factors;
};

#if defined(__AVX512F__)

/// x * multiplier, high and low words apart, for 16 words.
inline void multiply(__m512i x, __m512i multiplier, __m512i& high, __m512i& low) {
  constexpr auto kOddWords = static_cast<_MM_PERM_ENUM>(0xF5), kEvenWords = static_cast<_MM_PERM_ENUM>(0xA0);
  const __m512i odd_x = _mm512_maskz_shuffle_epi32(0xFFFF, x, kOddWords);
  const __m512i even = _mm512_maskz_mul_epu32(0xFF, x, multiplier),
                odd = _mm512_maskz_mul_epu32(0xFF, odd_x, multiplier);
  low = _mm512_mask_shuffle_epi32(even, 0xAAAA, odd, kEvenWords);
  high = _mm512_mask_shuffle_epi32(odd, 0x5555, even, kOddWords);
}

/// One run or two, which take the same time.
inline void dropout_factors(const MaskRun& first, const MaskRun* second, const Dropout& dropout) {
  const MaskRun& other = second != nullptr ? *second : first;
  const auto both = [](uint32_t a, uint32_t b) {
    return _mm512_mask_set1_epi32(_mm512_set1_epi32(static_cast<int>(a)), 0xFF00, static_cast<int>(b));
  };
  const auto all = [](uint32_t a) { return _mm512_set1_epi32(static_cast<int>(a)); };
  const auto& key = dropout.key;
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
  __m512i c0 = _mm512_add_epi32(both(first.block, other.block), lanes), c1 = both(first.high, other.high);
  __m512i c2 = all(key.step), c3 = all(key.site);
  __m512i key0 = all(static_cast<uint32_t>(key.seed)), key1 = all(static_cast<uint32_t>(key.seed >> 32));
  for (int round = 0; round < Philox::kRounds; ++round) {
    __m512i high0, low0, high1, low1;
    multiply(c0, all(Philox::kMultiplier0), high0, low0);
    multiply(c2, all(Philox::kMultiplier1), high1, low1);
    constexpr int kExclusiveOr = 0x96;
    c0 = _mm512_ternarylogic_epi32(high1, c1, key0, kExclusiveOr);
    c2 = _mm512_ternarylogic_epi32(high0, c3, key1, kExclusiveOr);
    c1 = low1;
    c3 = low0;
    key0 = _mm512_add_epi32(key0, all(Philox::kWeyl0));
    key1 = _mm512_add_epi32(key1, all(Philox::kWeyl1));
  }
  // A bit for each word, put into the order of elements.
  const auto kept = [&](__m512i words, uint64_t every_fourth) {
    return _pdep_u64(_mm512_cmpge_epu32_mask(words, all(dropout.threshold)), every_fourth);
  };
  const uint64_t bits = kept(c0, 0x1111111111111111) | kept(c1, 0x2222222222222222) | kept(c2, 0x4444444444444444) |
                        kept(c3, 0x8888888888888888);
  for (int part = 0; part < 4; ++part) {
    const auto factors =
        _mm512_maskz_mov_ps(static_cast<__mmask16>(bits >> (16 * part)), _mm512_set1_ps(dropout.scale));
    _mm512_storeu_ps((part < 2 ? first : other).factors + part % 2 * 16, factors);
  }
}

#else

#ifdef __AVX2__

/// x * multiplier, high and low words apart, for 8 words.
inline void multiply(__m256i x, __m256i multiplier, __m256i& high, __m256i& low) {
  const __m256i even = _mm256_mul_epu32(x, multiplier);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), multiplier);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}

inline void dropout_factors(const MaskRun& run, const Dropout& dropout) {
  const auto& [block, high, factors] = run;
  const auto& key = dropout.key;
  __m256i c0 = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(block)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  __m256i c1 = _mm256_set1_epi32(static_cast<int>(high)), c2 = _mm256_set1_epi32(static_cast<int>(key.step)),
          c3 = _mm256_set1_epi32(static_cast<int>(key.site));
  const __m256i multiplier0 = _mm256_set1_epi64x(Philox::kMultiplier0),
                multiplier1 = _mm256_set1_epi64x(Philox::kMultiplier1);
  auto key0 = static_cast<uint32_t>(key.seed), key1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < Philox::kRounds; ++round, key0 += Philox::kWeyl0, key1 += Philox::kWeyl1) {
    __m256i high0, low0, high1, low1;
    multiply(c0, multiplier0, high0, low0);
    multiply(c2, multiplier1, high1, low1);
    c0 = _mm256_xor_si256(_mm256_xor_si256(high1, c1), _mm256_set1_epi32(static_cast<int>(key0)));
    c2 = _mm256_xor_si256(_mm256_xor_si256(high0, c3), _mm256_set1_epi32(static_cast<int>(key1)));
    c1 = low1;
    c3 = low0;
  }
  // Kept where max(word, threshold) == word; then words are put into the order of elements.
  const __m256i threshold = _mm256_set1_epi32(static_cast<int>(dropout.threshold));
  const __m256 scale = _mm256_set1_ps(dropout.scale);
  const auto factor = [&](__m256i word) {
    const __m256i kept = _mm256_cmpeq_epi32(_mm256_max_epu32(word, threshold), word);
    return _mm256_and_ps(_mm256_castsi256_ps(kept), scale);
  };
  const __m256 f0 = factor(c0), f1 = factor(c1), f2 = factor(c2), f3 = factor(c3);
  const __m256 a = _mm256_unpacklo_ps(f0, f1), b = _mm256_unpackhi_ps(f0, f1);
  const __m256 c = _mm256_unpacklo_ps(f2, f3), d = _mm256_unpackhi_ps(f2, f3);
  const __m256 lanes04 = _mm256_shuffle_ps(a, c, 0x44), lanes15 = _mm256_shuffle_ps(a, c, 0xEE);
  const __m256 lanes26 = _mm256_shuffle_ps(b, d, 0x44), lanes37 = _mm256_shuffle_ps(b, d, 0xEE);
  _mm256_storeu_ps(factors, _mm256_permute2f128_ps(lanes04, lanes15, 0x20));
  _mm256_storeu_ps(factors + 8, _mm256_permute2f128_ps(lanes26, lanes37, 0x20));
  _mm256_storeu_ps(factors + 16, _mm256_permute2f128_ps(lanes04, lanes15, 0x31));
  _mm256_storeu_ps(factors + 24, _mm256_permute2f128_ps(lanes26, lanes37, 0x31));
}

#else

inline void dropout_factors(const MaskRun& run, const Dropout& dropout) {
  const auto& [block, high, factors] = run;
  for (uint32_t lane = 0; lane < kMaskRun / 4; ++lane) {
    uint32_t c0 = block + lane, c1 = high, c2 = dropout.key.step, c3 = dropout.key.site;
    auto key0 = static_cast<uint32_t>(dropout.key.seed), key1 = static_cast<uint32_t>(dropout.key.seed >> 32);
    for (int round = 0; round < Philox::kRounds; ++round, key0 += Philox::kWeyl0, key1 += Philox::kWeyl1) {
      const uint64_t product0 = uint64_t{Philox::kMultiplier0} * c0, product1 = uint64_t{Philox::kMultiplier1} * c2;
      c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
      c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
      c1 = static_cast<uint32_t>(product1);
      c3 = static_cast<uint32_t>(product0);
    }
    const uint32_t words[4] = {c0, c1, c2, c3};
    for (int word = 0; word < 4; ++word) {
      factors[4 * lane + word] = words[word] >= dropout.threshold ? dropout.scale : 0;
    }
  }
}

#endif

inline void dropout_factors(const MaskRun& first, const MaskRun* second, const Dropout& dropout) {
  dropout_factors(first, dropout);
  if (second != nullptr) {
    dropout_factors(*second, dropout);
  }
}

#endif

/// The same for all of `count` runs, `run(i)` is one.
template <class Run>
inline void all_dropout_factors(int64_t count, const Dropout& dropout, const Run& run) {
  for (int64_t i = 0; i < count; i += 2) {
    if (i + 1 < count) {
      const MaskRun second = run(i + 1);
      dropout_factors(run(i), &second, dropout);
    } else {
      dropout_factors(run(i), nullptr, dropout);
    }
  }
}

/// Factors of elements `first` ... `first + count - 1` of a tensor, as `kernels::dropout` counts them.
/// Tensors of 2^34 elements and more would need a carry within a run.
/// @param factors  room for count + 2 * kMaskRun
/// @return where in `factors` they begin.
inline const float* dropout_row(uint64_t first, int64_t count, const Dropout& dropout, float* factors) {
  const uint64_t block = first / 4;
  const auto skip = static_cast<int64_t>(first % 4);
  all_dropout_factors((count + skip + kMaskRun - 1) / kMaskRun, dropout, [&](int64_t i) {
    const uint64_t at = block + static_cast<uint64_t>(i * kMaskRun / 4);
    return MaskRun{static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), factors + i * kMaskRun};
  });
  return factors + skip;
}

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
