#include "encoder/cuda/activations.h"
#include "encoder/cuda/columns.h"
#include "encoder/cuda/row_launchers.h"

// A thread four columns, of one row, or in backward of some rows, whose sums it keeps. Forward
// moves two elements each, backward four.

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

template <Activation kKind, bool kIsHalf, bool kWhole>
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
    const Four bias = Fours<kWhole>::load_bias(a.bias, a.product.element, column, a.columns);
    Four four = Fours<kWhole>::load(a.product, begin + column, end);
    for (int i = 0; i < 4; ++i) {
      four.at[i] = activate<kKind, kIsHalf>(four.at[i] + bias.at[i]).value;
    }
    Fours<kWhole>::store(a.output, begin + column, end, four);
  }
};

template <Activation kKind, bool kIsHalf, bool kWhole>
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
    const Four bias = Fours<kWhole>::load_bias(a.bias, a.product.element, column, a.columns);
    Four sums{};
    constexpr int kAtOnce = 4;  // rows on their way at a time
    static_assert(kRowsOfSum % kAtOnce == 0);
    for (int64_t first = part * kRowsOfSum; first < a.rows && first < (part + 1) * kRowsOfSum; first += kAtOnce) {
      Four products[kAtOnce], grads[kAtOnce];
      const auto for_rows = [&, column = column](const auto& body) {
        MEZZO_UNROLLED
        for (int i = 0; i < kAtOnce; ++i) {
          if (first + i < a.rows) {
            body(i, (first + i) * a.columns + column, (first + i + 1) * a.columns);
          }
        }
      };
      for_rows([&](int row, int64_t begin, int64_t end) {
        products[row] = Fours<kWhole>::load(a.product, begin, end);
        grads[row] = Fours<kWhole>::load(a.grad, begin, end);
      });
      for_rows([&](int row, int64_t begin, int64_t end) {
        Four output;
        for (int i = 0; i < 4; ++i) {
          const ValueAndSlope of = activate<kKind, kIsHalf>(products[row].at[i] + bias.at[i]);
          output.at[i] = of.value;
          grads[row].at[i] *= of.slope;
          sums.at[i] += grads[row].at[i];
        }
        Fours<kWhole>::store(a.output, begin, end, output);
        Fours<kWhole>::store(a.grad, begin, end, grads[row]);
      });
    }
    Fours<kWhole>::template store<float>(a.sums, part * a.columns + column, (part + 1) * a.columns, sums);
  }
};

}  // namespace

void bias_activation(const ActivationArguments& a, Stream stream) {
  with_activation(a.kind, a.product, [&]<class Kind, class IsHalf>(Kind, IsHalf) {
    with_whole_fours(a.columns, {a.product.data, a.bias.data, a.output.data}, [&]<class Whole>(Whole) {
      launch<Forward<Kind::value, IsHalf::value, Whole::value>>(tiles_of(a.rows, a.columns), stream, a);
    });
  });
}

void bias_activation_backward(const ActivationArguments& a, Stream stream) {
  with_activation(a.kind, a.product, [&]<class Kind, class IsHalf>(Kind, IsHalf) {
    with_whole_fours(a.columns, {a.product.data, a.bias.data, a.output.data, a.grad.data, a.sums},
                     [&]<class Whole>(Whole) {
                       launch<Backward<Kind::value, IsHalf::value, Whole::value>>(
                           tiles_of(ceil_div(a.rows, kRowsOfSum), a.columns), stream, a);
                     });
  });
}

}  // namespace mezzo::encoder::MEZZO_CUDA
