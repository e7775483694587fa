#pragma once

#include <cstddef>
#include <type_traits>

#include "kernels/cpu/simd/elements.h"
#include "kernels/cpu/simd/simd.h"

namespace mezzo::kernels::cpu::MEZZO_SIMD {

inline float bits_to_float(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

inline uint32_t float_to_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

/// The bits of a float32 and an addend, cut to bfloat16; a NaN keeps its sign and becomes quiet.
inline uint16_t cut_to_bfloat16(uint32_t bits, uint32_t addend) {
  const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return static_cast<uint16_t>((is_nan ? bits | 0x400000 : bits + addend) >> 16);
}

inline float half_to_float(uint16_t x) {
  const uint32_t sign = uint32_t{x & 0x8000U} << 16, magnitude = x & 0x7FFFU;
  if (magnitude >= 0x7C00) {  // inf and NaN, which becomes quiet
    return bits_to_float(sign | 0x7F800000 | ((magnitude & 0x3FF) << 13) | (magnitude > 0x7C00 ? 0x400000 : 0));
  }
  // The exponents' biases differ by 112; as a product, subnormal numbers come out right too.
  return bits_to_float(sign | float_to_bits(bits_to_float(magnitude << 13) * 0x1p112f));
}

/// To nearest even; NaN stays NaN; beyond 65504 becomes inf.
inline uint16_t float_to_half(float x) {
  const uint32_t bits = float_to_bits(x), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) {
    return static_cast<uint16_t>(sign | 0x7E00 | ((magnitude >> 13) & 0x3FF));
  }
  if (magnitude >= 0x477FF000) {  // rounds to 65536 or more
    return static_cast<uint16_t>(sign | 0x7C00);
  }
  if (magnitude < 0x38800000) {  // subnormal: adding 0.5 leaves multiples of 2^-24 in the low bits
    return static_cast<uint16_t>(sign | (float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3F000000));
  }
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000 + 0xFFF + ((magnitude >> 13) & 1)) >> 13));
}

/// All elements of a vector, or the first ones.
struct All {};
struct First {
  int64_t count;
};

/// Elements i, i + 1, ... of an array that go through a register alone. Loads run ahead of the computation, while the
/// conversion of whole rows waits for it. Rounded to nearest even; NaN stays NaN.
template <Element kElement>
struct Elements {
  static constexpr int64_t kBytes = kElement == Element::kFloat ? 4 : 2;

  static Floats load(const void* array, int64_t i, All) {
    const char* from = static_cast<const char*>(array) + i * kBytes;
    if constexpr (kElement == Element::kFloat) {
      return MEZZO_SIMD::load(reinterpret_cast<const float*>(from));
    } else {
      Halves halves;
      __builtin_memcpy(&halves, from, sizeof halves);
      return widened(halves);
    }
  }

  static void store(void* array, int64_t i, All, Floats x) {
    char* to = static_cast<char*>(array) + i * kBytes;
    if constexpr (kElement == Element::kFloat) {
      MEZZO_SIMD::store(reinterpret_cast<float*>(to), x);
    } else {
      const Halves halves = rounded(x);
      __builtin_memcpy(to, &halves, sizeof halves);
    }
  }

  /// Zeros behind them.
  static Floats load(const void* array, int64_t i, First part) {
    char copy[kWidth * kBytes] = {};
    __builtin_memcpy(copy, static_cast<const char*>(array) + i * kBytes, static_cast<std::size_t>(part.count * kBytes));
    return load(copy, 0, All{});
  }

  static void store(void* array, int64_t i, First part, Floats x) {
    char copy[kWidth * kBytes];
    store(copy, 0, All{}, x);
    __builtin_memcpy(static_cast<char*>(array) + i * kBytes, copy, static_cast<std::size_t>(part.count * kBytes));
  }

 private:
  using Halves = uint16_t __attribute__((vector_size(kWidth * sizeof(uint16_t)), may_alias));

  static Floats widened(Halves halves) {
    if constexpr (kElement == Element::kBFloat16) {
#ifdef __AVX512F__
      return (Floats)((Bits)_mm512_maskz_cvtepu16_epi32(0xFFFF, (__m256i)halves) << 16);
#else
      return (Floats)(__builtin_convertvector(halves, Bits) << 16);
#endif
    }
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_cvtph_ps(0xFFFF, (__m256i)halves);
#elif defined(__F16C__)
    return (Floats)_mm256_cvtph_ps((__m128i)halves);
#else
    Floats x;
    for (int64_t i = 0; i < kWidth; ++i) {
      x[i] = half_to_float(halves[i]);
    }
    return x;
#endif
  }

  static Halves rounded(Floats x) {
    if constexpr (kElement == Element::kBFloat16) {
#ifdef __AVX512BF16__  // whose instructions take subnormal numbers for zeros
      return (Halves)_mm512_cvtneps_pbh((__m512)x);
#else
      const auto bits = (Bits)x;
      const Bits quiet = bits | 0x400000, nearest = bits + 0x7FFF + ((bits >> 16) & 1);
      const Bits words = ((Ints)bits & 0x7FFFFFFF) > 0x7F800000 ? quiet : nearest;
#if defined(__AVX2__) && !defined(__AVX512F__)  // the compiler packs them one by one
      const auto high = (__m256i)(words >> 16);
      return (Halves)_mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
#else
      return __builtin_convertvector(words >> 16, Halves);
#endif
#endif
    }
#if defined(__AVX512F__)
    return (Halves)_mm512_maskz_cvtps_ph(0xFFFF, (__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
    return (Halves)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    Halves halves;
    for (int64_t i = 0; i < kWidth; ++i) {
      halves[i] = float_to_half(x[i]);
    }
    return halves;
#endif
  }
};

/// Calls `body(i, All{})` at every full vector of `count` elements and `body(i, First{left})` for the rest.
template <class Body>
inline void for_elements(int64_t count, const Body& body) {
  for_vectors(count, [&](int64_t i) { body(i, All{}); }, [&](int64_t i, int64_t left) { body(i, First{left}); });
}

/// Calls body with the Elements that `element` names.
template <class Body>
inline void with_elements(Element element, const Body& body) {
  switch (element) {
    case Element::kFloat: return body(Elements<Element::kFloat>{});
    case Element::kBFloat16: return body(Elements<Element::kBFloat16>{});
    case Element::kHalf: return body(Elements<Element::kHalf>{});
  }
}

template <class From, class To>
inline void convert(const void* from, void* to, int64_t count) {
  if constexpr (std::is_same_v<From, To>) {
    __builtin_memcpy(to, from, static_cast<std::size_t>(count * To::kBytes));
  } else {
    for_elements(count, [&](int64_t i, auto part) { To::store(to, i, part, From::load(from, i, part)); });
  }
}

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
