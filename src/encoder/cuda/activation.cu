#include "encoder/cuda/activations.h"
#include "encoder/cuda/columns.h"
#include "encoder/cuda/row_launchers.h"

// A thread four columns, of one row, or in backward of some rows, whose sums it keeps. Forward
// moves two elements each, backward four.

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

struct Forward {
  template <class Memory>
  static void uses(Memory& memory, const ActivationArguments& a) {
    memory.reads(a.product, a.rows * a.columns);
    memory.reads(a.bias, a.columns);
    memory.writes(a.output, a.rows * a.columns);
  }

  MEZZO_DEVICE static void run(const Block& block, const ActivationArguments& a) {
    const auto [row, column] = place_of(block, a.columns);
    if (column >= a.columns) {
      return;
    }
    const int64_t begin = row * a.columns, end = begin + a.columns;
    const Four bias = load_bias(a.bias, a.product.element, column, a.columns);
    Four four = load_four(a.product, begin + column, end);
    for (int i = 0; i < 4; ++i) {
      four.at[i] = activate(four.at[i] + bias.at[i], a.kind).value;
    }
    store_four(a.output, begin + column, end, four);
  }
};

struct Backward {
  template <class Memory>
  static void uses(Memory& memory, const ActivationArguments& a) {
    memory.reads(a.product, a.rows * a.columns);
    memory.reads(a.bias, a.columns);
    memory.updates(a.grad, a.rows * a.columns);
    memory.writes(a.output, a.rows * a.columns);
    memory.writes(a.sums, ceil_div(a.rows, kRowsOfSum) * a.columns);
  }

  MEZZO_DEVICE static void run(const Block& block, const ActivationArguments& a) {
    const auto [part, column] = place_of(block, a.columns);
    if (column >= a.columns) {
      return;
    }
    const Four bias = load_bias(a.bias, a.product.element, column, a.columns);
    Four sums{};
    for (int64_t row = part * kRowsOfSum; row < a.rows && row < (part + 1) * kRowsOfSum; ++row) {
      const int64_t begin = row * a.columns, end = begin + a.columns;
      const Four product = load_four(a.product, begin + column, end);
      Four grad = load_four(a.grad, begin + column, end), output;
      for (int i = 0; i < 4; ++i) {
        const ValueAndSlope of = activate(product.at[i] + bias.at[i], a.kind);
        output.at[i] = of.value;
        grad.at[i] *= of.slope;
        sums.at[i] += grad.at[i];
      }
      store_four(a.output, begin + column, end, output);
      store_four(a.grad, begin + column, end, grad);
    }
    store_four<float>(a.sums, part * a.columns + column, (part + 1) * a.columns, sums);
  }
};

}  // namespace

void bias_activation(const ActivationArguments& a, Stream stream) {
  launch<Forward>(tiles_of(a.rows, a.columns), stream, a);
}

void bias_activation_backward(const ActivationArguments& a, Stream stream) {
  launch<Backward>(tiles_of(ceil_div(a.rows, kRowsOfSum), a.columns), stream, a);
}

}  // namespace mezzo::encoder::MEZZO_CUDA
