#include "encoder/cpu/simd/activations.h"
#include "encoder/cpu/simd/table.h"
#include "kernels/cpu/simd/convert.h"

namespace mezzo::encoder::cpu::MEZZO_SIMD {
namespace {

using Bias = Elements<Element::kFloat>;

// Passes hold their values in separate variables. A store through a pointer could change any memory, so a value behind
// one would be read anew for every vector.

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

}  // namespace

void bias_activation(const BiasActivation& op, int64_t begin, int64_t end, int64_t columns) {
  run_pass(op.product.element, op.kind, Forward{op, begin, end, columns});
}

void bias_activation_backward(
    const BiasActivationBackward& op, int64_t begin, int64_t end, int64_t columns, float* sums) {
  run_pass(op.product.element, op.kind, Backward{op, begin, end, columns, sums});
}

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
