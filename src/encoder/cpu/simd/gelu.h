#pragma once

#include "encoder/cpu/simd/exp.h"
#include "encoder/cpu/simd/rows.h"
#include "kernels/cpu/simd/elements.h"
#include "kernels/cpu/simd/simd.h"

namespace mezzo::encoder::cpu::MEZZO_SIMD {

using kernels::cpu::Element;

/// An activation, and its derivative.
struct ValueAndSlope {
  Floats value, slope;
};

#ifdef __AVX512F__

constexpr int kSegments = 32;  // as many as two registers hold coefficients of

/// A function of |x| that is nearly 0 from 6 on: a polynomial in each of kSegments parts of [0, 6),
/// and 0 from the last of them on.
template <int kCoefficients>
class Tail {
 public:
  /// Where |x| lies.
  struct Place {
    __m512i segment;
    Floats offset;  // in the segment, 0 to 1
  };

  template <class Function>
  explicit Tail(const Function& function) {
    for (int segment = 0; segment + 1 < kSegments; ++segment) {
      double nodes[kCoefficients], c[kCoefficients], powers[kCoefficients] = {};
      for (int i = 0; i < kCoefficients; ++i) {  // of Chebyshev
        nodes[i] = 0.5 - 0.5 * __builtin_cos((2 * i + 1) * 3.14159265358979324 / (2 * kCoefficients));
        c[i] = function((segment + nodes[i]) * kEnd / kSegments);
      }
      for (int order = 1; order < kCoefficients; ++order) {  // Newton's divided differences
        for (int i = kCoefficients - 1; i >= order; --i) {
          c[i] = (c[i] - c[i - 1]) / (nodes[i] - nodes[i - order]);
        }
      }
      for (int i = kCoefficients - 1; i >= 0; --i) {
        for (int power = kCoefficients - 1; power > 0; --power) {
          powers[power] = powers[power - 1] - nodes[i] * powers[power];
        }
        powers[0] = c[i] - nodes[i] * powers[0];
      }
      for (int power = 0; power < kCoefficients; ++power) {
        coefficients_[power][segment / kWidth][segment % kWidth] = static_cast<float>(powers[power]);
      }
    }
  }

  static Place place(Floats x) {
    const Floats segments = (Floats)((Ints)x & 0x7FFFFFFF) * static_cast<float>(kSegments / kEnd);
    const Floats most = broadcast(kSegments - 0.5f), at = segments > most ? most : segments;  // NaN stays NaN
    const __m512i segment = _mm512_maskz_cvttps_epi32(0xFFFF, (__m512)at);
    return {segment, at - (Floats)_mm512_maskz_cvtepi32_ps(0xFFFF, segment)};
  }

  Floats operator()(const Place& place) const {
    Floats value = coefficient(kCoefficients - 1, place);
#pragma GCC unroll 8
    for (int power = kCoefficients - 2; power >= 0; --power) {
      value = value * place.offset + coefficient(power, place);
    }
    return value;
  }

 private:
  Floats coefficient(int power, const Place& place) const {
    const auto* c = coefficients_[power];
    return (Floats)_mm512_permutex2var_ps((__m512)c[0], place.segment, (__m512)c[1]);
  }

  static constexpr double kEnd = 6;

  Floats coefficients_[kCoefficients][2] = {};
};

inline double normal_tail(double a) { return 0.5 * __builtin_erfc(a * 0.707106781186547524); }
inline double normal_density(double a) { return 0.398942280401432678 * __builtin_exp(-0.5 * a * a); }

/// From tables of Φ(-a) and of the slope there; either is 1 less that on the other side of 0.
template <int kCoefficients>
class TabulatedGelu {
 public:
  ValueAndSlope operator()(Floats x) const {
    const auto place = Tail<kCoefficients>::place(x);
    const Floats cumulative = cumulative_(place), slope = slope_(place);
    return {x * (x < 0.0f ? cumulative : 1.0f - cumulative), x < 0.0f ? slope : 1.0f - slope};
  }

 private:
  Tail<kCoefficients> cumulative_{normal_tail};
  Tail<kCoefficients> slope_{[](double a) { return normal_tail(a) - a * normal_density(a); }};
};

/// Cubics leave 3e-7 of Φ and 2e-6 of the slope, some 1e-4 of either in the tail: less
/// than half types can tell.
template <Element kElement>
using Gelu = TabulatedGelu<kElement == Element::kFloat ? 6 : 4>;

#else

/// Φ(x), the normal distribution function, and φ(x), its density.
struct Normal {
  Floats cumulative, density;
};

/// Φ(-a) = φ(a) √(π/2) erfcx(a/√2) for a >= 0. A polynomial in 1 / (1 + 0.3 z) gives erfcx(z), fitted for least
/// relative error. It is 2e-8 in exact arithmetic up to z = 10; φ underflows before. Within 5e-7, relatively, in both
/// tails.
inline Normal normal(Floats x) {
  const Floats size = x < 0.0f ? -x : x, a = size > 13.0f ? broadcast(13.0f) : size;  // φ(13) is 8e-38
  const Floats t = 1.0f / (a * 0.212132037f + 1.0f);
  Floats p = t * -1.29521608e-01f + 4.85556900e-01f;
  p = p * t + -5.12265027e-01f;
  p = p * t + 5.47704995e-01f;
  p = p * t + -9.46401656e-02f;
  p = p * t + 2.14921445e-01f;
  p = p * t + 1.48340389e-01f;
  p = p * t + 1.70715049e-01f;
  p = p * t + 1.69188023e-01f;
  const Floats e = exp_in_range(a * a * -0.5f);
  const Floats tail = p * t * e * 0.5f;
  return {x < 0.0f ? tail : 1.0f - tail, e * 0.398942280f};
}

template <Element kElement>
struct Gelu {
  ValueAndSlope operator()(Floats x) const {
    const Normal n = normal(x);
    return {x * n.cumulative, n.cumulative + x * n.density};
  }
};

#endif

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
