#include "encoder/cuda/activations.h"
#include "encoder/cuda/columns.h"
#include "encoder/cuda/pre_norm_launchers.h"

// A thread takes four columns of the result, and the same columns of the product's two halves. It takes one row, or in
// backward some rows, whose sums it keeps. Forward moves three elements each, backward six.

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

/// Four columns of the activation's input, and of its gate.
struct Halves {
  Four input, gate;
};

/// What both passes have of a row's four columns.
class GatedRow {
 public:
  MEZZO_DEVICE GatedRow(const GatedActivationArguments& a, int64_t column)
      : a_(a),
        column_(column),
        bias_{load_bias(a.bias, a.product.element, column, a.columns),
              load_bias(a.bias, a.product.element, a.columns + column, 2 * a.columns)} {}

  MEZZO_DEVICE Halves load(int64_t row) const {
    const int64_t gate = input_end(row);
    Halves halves{load_four(a_.product, input(row), gate), load_four(a_.product, gate + column_, gate + a_.columns)};
    for (int i = 0; i < 4; ++i) {
      halves.input.at[i] += bias_.input.at[i];
      halves.gate.at[i] += bias_.gate.at[i];
    }
    return halves;
  }

  MEZZO_DEVICE Four factors(int64_t row) const {
    return mask_four(a_.mask, mask_row(a_.row_numbers, row) * a_.columns + column_);
  }

  MEZZO_DEVICE Four load_grad(int64_t row) const { return load_four(a_.output, output(row), output_end(row)); }
  MEZZO_DEVICE void store_output(int64_t row, const Four& four) const {
    store_four(a_.output, output(row), output_end(row), four);
  }
  MEZZO_DEVICE void store_grads(int64_t row, const Halves& grads) const {
    const int64_t gate = input_end(row);
    store_four(a_.grad, input(row), gate, grads.input);
    store_four(a_.grad, gate + column_, gate + a_.columns, grads.gate);
  }

 private:
  MEZZO_DEVICE int64_t input(int64_t row) const { return 2 * row * a_.columns + column_; }
  MEZZO_DEVICE int64_t input_end(int64_t row) const { return (2 * row + 1) * a_.columns; }
  MEZZO_DEVICE int64_t output(int64_t row) const { return row * a_.columns + column_; }
  MEZZO_DEVICE int64_t output_end(int64_t row) const { return (row + 1) * a_.columns; }

  const GatedActivationArguments& a_;
  int64_t column_;
  Halves bias_;
};

template <class Memory>
void reads_inputs(Memory& memory, const GatedActivationArguments& a) {
  memory.reads(a.product, a.rows * 2 * a.columns);
  memory.reads(a.bias, 2 * a.columns);
  memory.reads(a.row_numbers, a.rows);
  memory.reads(a.mask.step_offset, 1);
}

template <Activation kKind, bool kIsHalf>
struct GatedForward {
  template <class Memory>
  static void uses(Memory& memory, const GatedActivationArguments& a) {
    reads_inputs(memory, a);
    memory.writes(a.output, a.rows * a.columns);
  }

  MEZZO_DEVICE static void run(const Block& block, const GatedActivationArguments& a) {
    const auto [row, column] = place_of(block, a.columns);
    if (column >= a.columns) {
      return;
    }
    const GatedRow of(a, column);
    const auto [input, gate] = of.load(row);
    const Four factors = of.factors(row);
    Four output;
    for (int i = 0; i < 4; ++i) {
      output.at[i] = masked(activate<kKind, kIsHalf>(input.at[i]).value * gate.at[i], factors.at[i]);
    }
    of.store_output(row, output);
  }
};

template <Activation kKind, bool kIsHalf>
struct GatedBackward {
  template <class Memory>
  static void uses(Memory& memory, const GatedActivationArguments& a) {
    reads_inputs(memory, a);
    memory.updates(a.output, a.rows * a.columns);
    memory.writes(a.grad, a.rows * 2 * a.columns);
    memory.writes(a.sums, ceil_div(a.rows, kRowsOfSum) * 2 * a.columns);
  }

  MEZZO_DEVICE static void run(const Block& block, const GatedActivationArguments& a) {
    const auto [part, column] = place_of(block, a.columns);
    if (column >= a.columns) {
      return;
    }
    const GatedRow of(a, column);
    Halves sums{};
    for (int64_t row = part * kRowsOfSum; row < a.rows && row < (part + 1) * kRowsOfSum; ++row) {
      const auto [input, gate] = of.load(row);
      const Four grad = of.load_grad(row), factors = of.factors(row);
      Four output;
      Halves grads;
      for (int i = 0; i < 4; ++i) {
        const ValueAndSlope activated = activate<kKind, kIsHalf>(input.at[i]);
        const float of_output = masked(grad.at[i], factors.at[i]);
        output.at[i] = masked(activated.value * gate.at[i], factors.at[i]);
        grads.input.at[i] = of_output * gate.at[i] * activated.slope;
        grads.gate.at[i] = of_output * activated.value;
        sums.input.at[i] += grads.input.at[i];
        sums.gate.at[i] += grads.gate.at[i];
      }
      of.store_output(row, output);
      of.store_grads(row, grads);
    }
    if (a.sums != nullptr) {
      float* const to = a.sums + part * 2 * a.columns;
      store_four<float>(to, column, a.columns, sums.input);
      store_four<float>(to, a.columns + column, 2 * a.columns, sums.gate);
    }
  }
};

}  // namespace

void gated_activation(const GatedActivationArguments& a, Stream stream) {
  with_activation(a.kind, a.product, [&]<class Kind, class IsHalf>(Kind, IsHalf) {
    launch<GatedForward<Kind::value, IsHalf::value>>(tiles_of(a.rows, a.columns), stream, a);
  });
}

void gated_activation_backward(const GatedActivationArguments& a, Stream stream) {
  with_activation(a.kind, a.product, [&]<class Kind, class IsHalf>(Kind, IsHalf) {
    launch<GatedBackward<Kind::value, IsHalf::value>>(tiles_of(ceil_div(a.rows, kRowsOfSum), a.columns), stream, a);
  });
}

}  // namespace mezzo::encoder::MEZZO_CUDA
