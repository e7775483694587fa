#pragma once

#include <cmath>
#include <type_traits>

#include "encoder/cuda/row_launchers.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"

namespace mezzo::encoder::MEZZO_CUDA {

struct ValueAndSlope {
  float value, slope;
};

/// @tparam kIsHalf  whether the result is in half precision: then GELU's cumulative distribution is right to 1e-7, by
///   the density that its slope needs anyway (Abramowitz and Stegun 26.2.17)
template <Activation kKind, bool kIsHalf>
MEZZO_DEVICE ValueAndSlope activate(float x) {
  if constexpr (kKind == Activation::kGelu) {
    if constexpr (kIsHalf) {
      const float density = 0.39894228f * ::exp2f(-0.72134752f * x * x),
                  t = reciprocal(::fmaf(0.2316419f, ::fabsf(x), 1));
      float sum = ::fmaf(t, 1.330274429f, -1.821255978f);
      sum = ::fmaf(t, sum, 1.781477937f);
      sum = ::fmaf(t, sum, -0.356563782f);
      sum = ::fmaf(t, sum, 0.319381530f);
      const float tail = density * t * sum, cumulative = x < 0 ? tail : 1 - tail;
      return {x * cumulative, ::fmaf(x, density, cumulative)};
    } else {
      const float cumulative = 0.5f * ::erfcf(-x * 0.70710678f), density = 0.39894228f * ::expf(-0.5f * x * x);
      return {x * cumulative, cumulative + x * density};
    }
  } else if constexpr (kKind == Activation::kGeluTanh) {
    constexpr float kScale = 0.79788456f, kCube = 0.044715f;
    const float t = ::tanhf(kScale * (x + kCube * x * x * x));
    return {0.5f * x * (1 + t), 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kScale * (1 + 3 * kCube * x * x)};
  } else {
    return {x < 0 ? 0.0f : x, x > 0 ? 1.0f : 0.0f};  // NaN stays
  }
}

/// Calls `body` with both of these as constants: a kernel that could do all of it would have too many instructions.
template <class Body>
void with_activation(Activation kind, const Span& product, const Body& body) {
  const auto with_kind = [&]<Activation kKind>(std::integral_constant<Activation, kKind> constant) {
    product.element != Element::kFloat ? body(constant, std::true_type()) : body(constant, std::false_type());
  };
  switch (kind) {
    case Activation::kGelu: return with_kind(std::integral_constant<Activation, Activation::kGelu>());
    case Activation::kGeluTanh: return with_kind(std::integral_constant<Activation, Activation::kGeluTanh>());
    case Activation::kRelu: return with_kind(std::integral_constant<Activation, Activation::kRelu>());
  }
}

}  // namespace mezzo::encoder::MEZZO_CUDA
