#pragma once

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

inline float bfloat16_to_float(uint16_t x) { return bits_to_float(uint32_t{x} << 16); }

/// To nearest even; NaN stays NaN.
inline uint16_t float_to_bfloat16(float x) {
  const uint32_t bits = float_to_bits(x);
  const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return static_cast<uint16_t>((is_nan ? bits | 0x400000 : bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float half_to_float(uint16_t x) {
  const uint32_t sign = uint32_t{x & 0x8000U} << 16, magnitude = x & 0x7FFFU;
  if (magnitude >= 0x7C00) {  // inf and NaN
    return bits_to_float(sign | 0x7F800000 | ((magnitude & 0x3FF) << 13));
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

inline int64_t size_of(Element element) { return element == Element::kFloat ? 4 : 2; }

/// What begins at element `first`.
inline ConstSpan tail(ConstSpan span, int64_t first) {
  return {static_cast<const char*>(span.data) + first * size_of(span.element), span.element};
}

/// Asks for `count` elements, which processors do not guess where rows lie far apart.
inline void read_ahead(ConstSpan span, int64_t count) {
  const auto* data = static_cast<const char*>(span.data);
  for (int64_t i = 0; i < count * size_of(span.element); i += 64) {
    __builtin_prefetch(data + i);
  }
}

/// `count` elements of `from`, from element `first` on, as float32: in place, or converted into `scratch`.
inline const float* read(ConstSpan from, int64_t first, int64_t count, float* scratch) {
  if (from.element == Element::kFloat) {
    return static_cast<const float*>(from.data) + first;
  }
  const auto* in = static_cast<const uint16_t*>(from.data) + first;
  int64_t i = 0;
  if (from.element == Element::kBFloat16) {
    for (; i < count; ++i) {
      scratch[i] = bfloat16_to_float(in[i]);
    }
    return scratch;
  }
#ifdef __F16C__
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(scratch + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
  }
#endif
  for (; i < count; ++i) {
    scratch[i] = half_to_float(in[i]);
  }
  return scratch;
}

/// Where to compute `count` elements of `to`: in place where those are float32, else in `scratch`, for `write`.
inline float* place(Span to, int64_t first, float* scratch) {
  return to.element == Element::kFloat ? static_cast<float*>(to.data) + first : scratch;
}

/// Ends what `place` began: rounds `count` values at `values` into `to`.
inline void write(const float* values, Span to, int64_t first, int64_t count) {
  if (to.element == Element::kFloat) {
    return;
  }
  auto* out = static_cast<uint16_t*>(to.data) + first;
  int64_t i = 0;
  if (to.element == Element::kBFloat16) {
#ifdef __AVX512BF16__  // whose instructions take subnormal numbers for zeros
    for (; i + 32 <= count; i += 32) {
      const auto rounded = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(values + i + 16), _mm512_loadu_ps(values + i));
      __builtin_memcpy(out + i, &rounded, sizeof rounded);
    }
#endif
    for (; i < count; ++i) {
      out[i] = float_to_bfloat16(values[i]);
    }
    return;
  }
#ifdef __F16C__
  for (; i + 8 <= count; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(values + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
#endif
  for (; i < count; ++i) {
    out[i] = float_to_half(values[i]);
  }
}

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
