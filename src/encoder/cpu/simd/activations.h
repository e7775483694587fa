#pragma once

#include "encoder/cpu/simd/exp.h"
#include "encoder/cpu/simd/gelu.h"
#include "encoder/cpu/simd/kernels.h"
#include "kernels/cpu/simd/convert.h"

/// The activations, and which of them a pass over elements is run with.
namespace mezzo::encoder::cpu::MEZZO_SIMD {

/// x / (1 + e^(-2 g)) with g = sqrt(2 / pi) (x + 0.044715 x^3), which is the tanh form
/// written with one exponential.
struct GeluTanh {
  ValueAndSlope operator()(Floats x) const {
    constexpr float kTwice = 1.59576912f, kCubic = 0.044715f;
    const Floats square = x * x;
    const Floats share = 1.0f / (1.0f + exp(x * (square * kCubic + 1.0f) * -kTwice));
    const Floats inner_slope = (square * (3 * kCubic) + 1.0f) * kTwice;
    return {x * share, share + x * share * (1.0f - share) * inner_slope};
  }
};

struct Relu {
  ValueAndSlope operator()(Floats x) const { return {x <= 0.0f ? Floats{} : x, x > 0.0f ? broadcast(1) : Floats{}}; }
};

template <Element kElement, class Pass>
void run_activation(Activation kind, const Pass& pass) {
  static const Gelu<kElement> gelu;
  switch (kind) {
    case Activation::kGelu: return pass.template run<kElement>(gelu);
    case Activation::kGeluTanh: return pass.template run<kElement>(GeluTanh{});
    case Activation::kRelu: return pass.template run<kElement>(Relu{});
  }
}

/// Calls `pass.run<kElement>(activation)`.
template <class Pass>
void run_pass(Element element, Activation kind, const Pass& pass) {
  switch (element) {
    case Element::kFloat: return run_activation<Element::kFloat>(kind, pass);
    case Element::kBFloat16: return run_activation<Element::kBFloat16>(kind, pass);
    case Element::kHalf: return run_activation<Element::kHalf>(kind, pass);
  }
}

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
