#pragma once

#include "kernels/cpu/simd/simd.h"

namespace mezzo::encoder::cpu::MEZZO_SIMD {

using namespace kernels::cpu::MEZZO_SIMD;  // vectors, and elements loaded into them

/// e^x within 2 units in the last place, for x from -87 to 88. 2^n 2^f with |f| <= 1/2,
/// 2^f by a minimax polynomial.
inline Floats exp_in_range(Floats x) {
  constexpr float kLog2e = 1.44269502f, kLog2eLow = 1.92596300e-08f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const Floats rounded = x * kLog2e + kRound;
  const Floats n = rounded - kRound;
  const Floats f = (x * kLog2e - n) + x * kLog2eLow;
  Floats p = f * 1.53457420e-04f + 1.33999288e-03f;
  p = p * f + 9.61848917e-03f;
  p = p * f + 5.55032879e-02f;
  p = p * f + 2.40226469e-01f;
  p = p * f + 6.93147206e-01f;
  p = p * f + 1.0f;
  return (Floats)((Bits)p + ((Bits)rounded << 23));  // adds n to the exponent
}

/// The same for any x: 0 below -87, NaN stays NaN.
inline Floats exp(Floats x) {
  const Floats e = exp_in_range(x > 88.0f ? broadcast(88.0f) : x);
  return x < -87.0f ? Floats{} : x != x ? x : e;
}

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
