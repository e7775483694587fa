#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/arguments.h"
#include "kernels/cuda/block.h"
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#endif

/// What tensors hold, as kernels take it: they compute in float32 whatever it is.
namespace mezzo::kernels::MEZZO_CUDA {

#ifdef __CUDACC__
using BFloat16 = __nv_bfloat16;
using Half = __half;
MEZZO_DEVICE float to_float(BFloat16 x) { return __bfloat162float(x); }
MEZZO_DEVICE float to_float(Half x) { return __half2float(x); }
#else
using BFloat16 = c10::BFloat16;
using Half = c10::Half;
inline float to_float(BFloat16 x) { return static_cast<float>(x); }
inline float to_float(Half x) { return static_cast<float>(x); }
#endif
MEZZO_DEVICE float to_float(float x) { return x; }

#ifdef __CUDACC__
MEZZO_DEVICE uint32_t bits_of(float x) { return __float_as_uint(x); }
MEZZO_DEVICE float float_of(uint32_t bits) { return __uint_as_float(bits); }
#else
inline uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
inline float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }
#endif

/// `x` as a T, rounded to nearest even.
template <class T>
MEZZO_DEVICE T from_float(float x);
template <>
MEZZO_DEVICE float from_float<float>(float x) {
  return x;
}
#ifdef __CUDACC__
template <>
MEZZO_DEVICE BFloat16 from_float<BFloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
MEZZO_DEVICE Half from_float<Half>(float x) {
  return __float2half_rn(x);
}
#else
template <>
inline BFloat16 from_float<BFloat16>(float x) {
  return BFloat16(x);
}
template <>
inline Half from_float<Half>(float x) {
  return Half(x);
}
#endif

MEZZO_DEVICE float load(const Span& span, int64_t i) {
  switch (span.element) {
    case Element::kFloat: return static_cast<const float*>(span.data)[i];
    case Element::kBFloat16: return to_float(static_cast<const BFloat16*>(span.data)[i]);
    default: return to_float(static_cast<const Half*>(span.data)[i]);
  }
}

MEZZO_DEVICE void store(const Span& span, int64_t i, float x) {
  switch (span.element) {
    case Element::kFloat: static_cast<float*>(span.data)[i] = x; return;
    case Element::kBFloat16: static_cast<BFloat16*>(span.data)[i] = from_float<BFloat16>(x); return;
    default: static_cast<Half*>(span.data)[i] = from_float<Half>(x);
  }
}

/// `x` as `element` holds it.
MEZZO_DEVICE float rounded(float x, Element element) {
  switch (element) {
    case Element::kFloat: return x;
    case Element::kBFloat16: return to_float(from_float<BFloat16>(x));
    default: return to_float(from_float<Half>(x));
  }
}

MEZZO_DEVICE bool is_half(const Span& span) { return span.element != Element::kFloat; }

/// 1 / x of an x from 1 on, to a unit or two in the last place.
MEZZO_DEVICE float reciprocal(float x) {
#ifdef __CUDACC__
  return __fdividef(1, x);
#else
  return 1 / x;
#endif
}

template <class T>
MEZZO_DEVICE constexpr Element element_of() {
  return std::is_same_v<T, float> ? Element::kFloat : std::is_same_v<T, BFloat16> ? Element::kBFloat16 : Element::kHalf;
}

/// Of a half type: numbers from their bits, and back, rounded to nearest even.
#ifdef __CUDACC__
MEZZO_DEVICE float float_of_bits(uint16_t bits, Element element) {
  return element == Element::kBFloat16 ? __uint_as_float(uint32_t{bits} << 16) : __half2float(__ushort_as_half(bits));
}
MEZZO_DEVICE uint16_t bits_of_float(float x, Element element) {
  return element == Element::kBFloat16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x))
                                       : __half_as_ushort(__float2half_rn(x));
}
#else
inline float float_of_bits(uint16_t bits, Element element) {
  return element == Element::kBFloat16 ? BFloat16(bits, BFloat16::from_bits()) : Half(bits, Half::from_bits());
}
inline uint16_t bits_of_float(float x, Element element) {
  return element == Element::kBFloat16 ? BFloat16(x).x : Half(x).x;
}
#endif

/// N elements that one thread reads or writes at once, if they are aligned to their size.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

/// Calls `body(T())` for the type of `element`.
template <class Body>
void with_type(Element element, const Body& body) {
  switch (element) {
    case Element::kFloat: return body(float());
    case Element::kBFloat16: return body(BFloat16());
    case Element::kHalf: return body(Half());
  }
}

}  // namespace mezzo::kernels::MEZZO_CUDA
