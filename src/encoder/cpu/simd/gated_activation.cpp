#include "encoder/cpu/simd/activations.h"
#include "encoder/cpu/simd/norm_rows.h"
#include "encoder/cpu/simd/table.h"

namespace mezzo::encoder::cpu::MEZZO_SIMD {
namespace {

using Factors = Elements<Element::kFloat>;

/// The factors of dropout of each row, ones if there is none.
class RowFactors {
 public:
  RowFactors(const GatedActivation& op, int64_t columns, float* memory) : op_(op), scratch_{memory, columns} {
    for (int64_t i = 0; i < columns && !op.dropout.is_on; ++i) {
      scratch_.factors()[i] = 1;
    }
  }
  const float* of(int64_t row) const {
    return op_.dropout.is_on ? dropped_row(op_.row_numbers, row, op_.dropout, scratch_) : scratch_.factors();
  }

 private:
  const GatedActivation& op_;
  Scratch scratch_;
};

struct GatedForward {
  template <Element kElement, class Activation>
  void run(const Activation activation) const {
    using Row = Elements<kElement>;
    const void* product = op.product.data;
    const float *bias = op.bias, *gate_bias = op.bias + columns;
    void* output = op.output.data;
    const RowFactors row_factors(op, columns, memory);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t input = 2 * row * columns, gate = input + columns;
      const float* factors = row_factors.of(row);
      for_elements(columns, [&](int64_t i, auto part) {
        const Floats x = Row::load(product, input + i, part) + Factors::load(bias, i, part);
        const Floats g = Row::load(product, gate + i, part) + Factors::load(gate_bias, i, part);
        Row::store(output, row * columns + i, part, dropped(activation(x).value * g, Factors::load(factors, i, part)));
      });
    }
  }

  const GatedActivation& op;
  int64_t begin, end, columns;
  float* memory;
};

struct GatedBackward {
  template <Element kElement, class Activation>
  void run(const Activation activation) const {
    if (sums != nullptr) {
      pass<kElement, true>(activation);
    } else {
      pass<kElement, false>(activation);
    }
  }

  template <Element kElement, bool kSums, class Activation>
  void pass(const Activation activation) const {
    using Row = Elements<kElement>;
    const void *product = op.forward.product.data, *grad_output = op.grad_output.data;
    const float *bias = op.forward.bias, *gate_bias = bias + columns;
    void *output = op.forward.output.data, *grad_product = op.grad_product.data;
    float *input_sums = sums, *gate_sums = kSums ? sums + columns : nullptr;
    const RowFactors row_factors(op.forward, columns, memory);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t input = 2 * row * columns, gate = input + columns;
      const float* factors = row_factors.of(row);
      for_elements(columns, [&](int64_t i, auto part) {
        const Floats x = Row::load(product, input + i, part) + Factors::load(bias, i, part);
        const Floats g = Row::load(product, gate + i, part) + Factors::load(gate_bias, i, part);
        const auto [value, slope] = activation(x);
        const Floats factor = Factors::load(factors, i, part);
        const Floats grad = dropped(Row::load(grad_output, row * columns + i, part), factor);
        const Floats grad_input = grad * g * slope, grad_gate = grad * value;
        Row::store(output, row * columns + i, part, dropped(value * g, factor));
        Row::store(grad_product, input + i, part, grad_input);
        Row::store(grad_product, gate + i, part, grad_gate);
        if constexpr (kSums) {
          Factors::store(input_sums, i, part, Factors::load(input_sums, i, part) + grad_input);
          Factors::store(gate_sums, i, part, Factors::load(gate_sums, i, part) + grad_gate);
        }
      });
    }
  }

  const GatedActivationBackward& op;
  int64_t begin, end, columns;
  float *sums, *memory;
};

}  // namespace

void gated_activation(const GatedActivation& op, int64_t begin, int64_t end, int64_t columns, float* scratch) {
  run_pass(op.product.element, op.kind, GatedForward{op, begin, end, columns, scratch});
}

void gated_activation_backward(
    const GatedActivationBackward& op, int64_t begin, int64_t end, int64_t columns, float* sums, float* scratch) {
  run_pass(op.forward.product.element, op.forward.kind, GatedBackward{op, begin, end, columns, sums, scratch});
}

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
