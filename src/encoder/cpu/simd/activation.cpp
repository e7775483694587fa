#include "encoder/cpu/simd/exp.h"
#include "encoder/cpu/simd/gelu.h"
#include "encoder/cpu/simd/table.h"
#include "kernels/cpu/simd/convert.h"

namespace mezzo::encoder::cpu::MEZZO_SIMD {
namespace {

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

using Bias = Elements<Element::kFloat>;

// Passes hold what they use in variables of their own: a store through a pointer could change any
// other place, and it would be read anew for every vector.

struct Forward {
  template <Element kElement, class Activation>
  void run(const Activation activation) const {
    using Row = Elements<kElement>;
    const void* product = op.product.data;
    const float* bias = op.bias;
    void* output = op.output.data;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row * columns;
      for_elements(columns, [&](int64_t i, auto part) {
        const Floats x = Row::load(product, first + i, part) + Bias::load(bias, i, part);
        Row::store(output, first + i, part, activation(x).value);
      });
    }
  }

  const BiasActivation& op;
  int64_t begin, end, columns;
};

struct Backward {
  template <Element kElement, class Activation>
  void run(const Activation activation) const {
    using Row = Elements<kElement>;
    const void *product = op.product.data, *grad_output = op.grad_output.data;
    const float* bias = op.bias;
    void *output = op.output.data, *grad_product = op.grad_product.data;
    float* bias_sums = sums;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row * columns;
      for_elements(columns, [&](int64_t i, auto part) {
        const Floats x = Row::load(product, first + i, part) + Bias::load(bias, i, part);
        const auto [value, slope] = activation(x);
        const Floats grad = Row::load(grad_output, first + i, part) * slope;
        Row::store(output, first + i, part, value);
        Row::store(grad_product, first + i, part, grad);
        Bias::store(bias_sums, i, part, Bias::load(bias_sums, i, part) + grad);
      });
    }
  }

  const BiasActivationBackward& op;
  int64_t begin, end, columns;
  float* sums;
};

template <Element kElement, class Pass>
void run(ActivationKind kind, const Pass& pass) {
  static const Gelu<kElement> gelu;
  switch (kind) {
    case ActivationKind::kGelu: return pass.template run<kElement>(gelu);
    case ActivationKind::kGeluTanh: return pass.template run<kElement>(GeluTanh{});
    case ActivationKind::kRelu: return pass.template run<kElement>(Relu{});
  }
}

template <class Pass>
void run(Element element, ActivationKind kind, const Pass& pass) {
  switch (element) {
    case Element::kFloat: return run<Element::kFloat>(kind, pass);
    case Element::kBFloat16: return run<Element::kBFloat16>(kind, pass);
    case Element::kHalf: return run<Element::kHalf>(kind, pass);
  }
}

}  // namespace

void bias_activation(const BiasActivation& op, int64_t begin, int64_t end, int64_t columns) {
  run(op.product.element, op.kind, Forward{op, begin, end, columns});
}

void bias_activation_backward(
    const BiasActivationBackward& op, int64_t begin, int64_t end, int64_t columns, float* sums) {
  run(op.product.element, op.kind, Backward{op, begin, end, columns, sums});
}

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
