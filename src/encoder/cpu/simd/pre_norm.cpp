#include "encoder/cpu/simd/norm_rows.h"
#include "encoder/cpu/simd/rows.h"
#include "encoder/cpu/simd/table.h"

namespace mezzo::encoder::cpu::MEZZO_SIMD {

void layer_norm(const LayerNorm& op, int64_t begin, int64_t end, int64_t columns, float* memory) {
  const Scratch scratch{memory, columns};
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * columns;
    const float* x = read(op.x, first, columns, scratch.row(0));
    float* normalised = op.normalised != nullptr ? op.normalised + first : scratch.row(1);
    float* output = place(op.output, first, scratch.row(2));
    for_each_vector(columns, [&](int64_t i, auto get, auto put) { put(normalised + i, get(x + i)); });
    const float rstd = normalise(normalised, columns, op.norm.eps);
    if (op.rstd != nullptr) {
      op.rstd[row] = rstd;
    }
    scale_and_shift(normalised, op.norm, columns, output);
    write(output, op.output, first, columns);
  }
}

void layer_norm_backward(
    const LayerNormBackward& op, int64_t begin, int64_t end, int64_t columns, float* sums, float* memory) {
  const Scratch scratch{memory, columns};
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * columns;
    const float* grad = read(op.grad_output, first, columns, scratch.row(0));
    float* grad_x = place(op.grad_x, first, scratch.row(1));
    norm_backward(grad, op.normalised + first, op.rstd[row], op.norm_weight, columns, sums, grad_x);
    if (op.residual.data != nullptr) {
      const float* residual = read(op.residual, first, columns, scratch.row(2));
      for_each_vector(columns,
                      [&](int64_t i, auto get, auto put) { put(grad_x + i, get(grad_x + i) + get(residual + i)); });
    }
    write(grad_x, op.grad_x, first, columns);
  }
}

void residual_dropout(const ResidualDropout& op, int64_t begin, int64_t end, int64_t columns, float* memory) {
  const Scratch scratch{memory, columns};
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * columns;
    const float* product = read(op.product, first, columns, scratch.row(0));
    const float* residual = read(op.residual, first, columns, scratch.row(1));
    float* output = place(op.output, first, scratch.row(2));
    if (op.dropout.is_on) {
      const float* factors = dropped_row(op.row_numbers, row, op.dropout, scratch);
      for_each_vector(columns, [&](int64_t i, auto get, auto put) {
        put(output + i, dropped(get(product + i) + get(op.bias + i), get(factors + i)) + get(residual + i));
      });
    } else {
      for_each_vector(columns, [&](int64_t i, auto get, auto put) {
        put(output + i, get(product + i) + get(op.bias + i) + get(residual + i));
      });
    }
    write(output, op.output, first, columns);
  }
}

void residual_dropout_backward(
    const ResidualDropoutBackward& op, int64_t begin, int64_t end, int64_t columns, float* sums, float* memory) {
  const Scratch scratch{memory, columns};
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * columns;
    const float* grad = read(op.grad_output, first, columns, scratch.row(0));
    float* product = place(op.grad_product, first, scratch.row(1));
    const float* factors = op.dropout.is_on ? dropped_row(op.row_numbers, row, op.dropout, scratch) : nullptr;
    for_each_vector(columns, [&](int64_t i, auto get, auto put) {
      const Floats g = factors != nullptr ? dropped(get(grad + i), get(factors + i)) : get(grad + i);
      put(product + i, g);
      put(sums + i, get(sums + i) + g);
    });
    write(product, op.grad_product, first, columns);
  }
}

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
