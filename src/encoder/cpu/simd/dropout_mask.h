#pragma once

#include "encoder/cpu/simd/kernels.h"
#include "kernels/cpu/simd/philox.h"
#include "kernels/cpu/simd/simd.h"

/// The masks of dropout, from Philox.
namespace mezzo::encoder::cpu::MEZZO_SIMD {

using namespace kernels::cpu::MEZZO_SIMD;  // vectors, and elements loaded into them

/// x times its factor of dropout. A factor of 0 gives 0, also for infinity and NaN.
inline Floats dropped(Floats x, Floats factor) { return (factor > 0.0f ? x : Floats{}) * factor; }

constexpr int64_t kMaskRun = 32;  // elements: 8 blocks of 4 words

/// kMaskRun elements, decided by the words of blocks {block + lane, high, step, site}. factors[i] becomes the dropout's
/// scale, or 0 if element 4 * block + i is dropped.
struct MaskRun {
  uint32_t block, high;
  float* factors;
};

/// One run or two, which take the same time where vectors are long enough.
inline void dropout_factors(const MaskRun& first, const MaskRun* second, const Dropout& dropout) {
#ifdef __AVX512F__
  const MaskRun& other = second != nullptr ? *second : first;
  const auto both = [](uint32_t a, uint32_t b) {
    return (Bits)_mm512_mask_set1_epi32(_mm512_set1_epi32(static_cast<int>(a)), 0xFF00, static_cast<int>(b));
  };
  const RandomWords words =
      philox(both(first.block, other.block) + (counting() & 7), both(first.high, other.high), dropout.key);
  // A bit for each word, put into the order of elements.
  const auto kept = [&](int word, uint64_t every_fourth) {
    const __m512i threshold = _mm512_set1_epi32(static_cast<int>(dropout.threshold));
    return _pdep_u64(_mm512_cmpge_epu32_mask((__m512i)words.of[word], threshold), every_fourth);
  };
  const uint64_t bits = kept(0, 0x1111111111111111) | kept(1, 0x2222222222222222) | kept(2, 0x4444444444444444) |
                        kept(3, 0x8888888888888888);
  for (int part = 0; part < 4; ++part) {
    const auto factors =
        _mm512_maskz_mov_ps(static_cast<__mmask16>(bits >> (16 * part)), _mm512_set1_ps(dropout.scale));
    _mm512_storeu_ps((part < 2 ? first : other).factors + part % 2 * 16, factors);
  }
#else
  const Bits threshold = Bits{} + dropout.threshold;
  const Floats scale = broadcast(dropout.scale);
  for (const MaskRun* run = &first; run != nullptr; run = run == &first ? second : nullptr) {
    const auto [first_block, high, factors] = *run;
    for (uint32_t block = 0; block < kMaskRun / 4; block += kWidth) {
      const RandomWords words = in_order(philox(first_block + block + counting(), Bits{} + high, dropout.key));
      for (int64_t part = 0; part < 4; ++part) {
        store(factors + 4 * block + part * kWidth, words.of[part] >= threshold ? scale : Floats{});
      }
    }
  }
#endif
}

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

/// Factors of elements `first` ... `first + count - 1` of a tensor, as `encoder::dropout` counts
/// them. Tensors of 2^34 elements and more would need a carry within a run.
/// @param factors  memory for count + 2 * kMaskRun
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

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
