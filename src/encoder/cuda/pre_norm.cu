#include "encoder/cuda/columns.h"
#include "encoder/cuda/norm_rows.h"
#include "encoder/cuda/pre_norm_launchers.h"

// The work of a block that begins with its norm, at its beginning and at its end. Each pass reads its inputs once, and
// writes its outputs once.

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

template <bool kWhole>
struct LayerNorm {
  template <class Memory>
  static void uses(Memory& memory, const LayerNormArguments& a) {
    memory.reads(a.x, a.rows * a.columns);
    uses_of_norm(memory, a.norm, a.to, a.rows, a.columns);
  }

  MEZZO_DEVICE static void run(const Block& block, const LayerNormArguments& a) {
    auto *scratch = block.shared<float>(), *row = block.shared<float>(kNormSumsBytes);
    const int64_t number = block.index(), begin = number * a.columns, end = begin + a.columns;
    float sum = 0;
    for_columns(block, a.columns, [&](int64_t c) {
      const Four x = Fours<kWhole>::load(a.x, begin + c, end);
      for (int i = 0; i < 4 && counts(c, i, a.columns); ++i) {
        sum += row[c + i] = x.at[i];
      }
    });
    finish_norm<kWhole>(block, row, scratch, sum, a.norm, Mask{}, number, a.to, a.columns);
  }
};

struct ResidualDropout {
  template <class Memory>
  static void uses(Memory& memory, const ResidualDropoutArguments& a) {
    memory.reads(a.product, a.rows * a.columns);
    memory.reads(a.bias, a.columns);
    memory.reads(a.residual, a.rows * a.columns);
    memory.reads(a.row_numbers, a.rows);
    memory.reads(a.mask.step_offset, 1);
    memory.writes(a.output, a.rows * a.columns);
  }

  MEZZO_DEVICE static void run(const Block& block, const ResidualDropoutArguments& a) {
    const auto [row, column] = place_of(block, a.columns);
    if (column >= a.columns) {
      return;
    }
    const int64_t begin = row * a.columns, end = begin + a.columns;
    const Four bias = load_bias(a.bias, a.product.element, column, a.columns),
               product = load_four(a.product, begin + column, end),
               residual = load_four(a.residual, begin + column, end),
               factors = mask_four(a.mask, mask_row(a.row_numbers, row) * a.columns + column);
    Four output;
    for (int i = 0; i < 4; ++i) {
      output.at[i] = masked(product.at[i] + bias.at[i], factors.at[i]) + residual.at[i];
    }
    store_four(a.output, begin + column, end, output);
  }
};

struct ResidualDropoutBackward {
  template <class Memory>
  static void uses(Memory& memory, const ResidualDropoutBackwardArguments& a) {
    memory.reads(a.grad, a.rows * a.columns);
    memory.reads(a.row_numbers, a.rows);
    memory.reads(a.mask.step_offset, 1);
    memory.writes(a.product, a.rows * a.columns);
    memory.writes(a.sums, ceil_div(a.rows, kRowsOfSum) * a.columns);
  }

  MEZZO_DEVICE static void run(const Block& block, const ResidualDropoutBackwardArguments& a) {
    const auto [part, column] = place_of(block, a.columns);
    if (column >= a.columns) {
      return;
    }
    Four sums{};
    for (int64_t row = part * kRowsOfSum; row < a.rows && row < (part + 1) * kRowsOfSum; ++row) {
      const int64_t begin = row * a.columns, end = begin + a.columns;
      const Four factors = mask_four(a.mask, mask_row(a.row_numbers, row) * a.columns + column);
      Four grad = load_four(a.grad, begin + column, end);
      for (int i = 0; i < 4; ++i) {
        grad.at[i] = masked(grad.at[i], factors.at[i]);
        sums.at[i] += grad.at[i];
      }
      store_four(a.product, begin + column, end, grad);
    }
    if (a.sums != nullptr) {
      store_four<float>(a.sums, part * a.columns + column, (part + 1) * a.columns, sums);
    }
  }
};

}  // namespace

void layer_norm(const LayerNormArguments& a, Stream stream) {
  with_whole_fours(
      a.columns, {a.x.data, a.norm.weight.data, a.norm.bias.data, a.to.output.data, a.to.normalised.data},
      [&]<class Whole>(Whole) { launch<LayerNorm<Whole::value>>(norm_grid(a.rows, a.columns), stream, a); });
}

void residual_dropout(const ResidualDropoutArguments& a, Stream stream) {
  launch<ResidualDropout>(tiles_of(a.rows, a.columns), stream, a);
}

void residual_dropout_backward(const ResidualDropoutBackwardArguments& a, Stream stream) {
  launch<ResidualDropoutBackward>(tiles_of(ceil_div(a.rows, kRowsOfSum), a.columns), stream, a);
}

}  // namespace mezzo::encoder::MEZZO_CUDA
