#include "encoder/cpu/simd/norm_rows.h"
#include "encoder/cpu/simd/rows.h"
#include "encoder/cpu/simd/table.h"

namespace mezzo::encoder::cpu::MEZZO_SIMD {

int64_t row_scratch(int64_t columns) { return (kScratchRows + 1) * columns + 2 * kMaskRun; }

void residual_layer_norm(const ResidualLayerNorm& op, int64_t begin, int64_t end, int64_t columns, float* memory) {
  const Scratch scratch{memory, columns};
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * columns;
    const float* product = read(op.product, first, columns, scratch.row(0));
    const float* residual = read(op.residual, first, columns, scratch.row(1));
    float* normalised = op.normalised != nullptr ? op.normalised + first : scratch.row(2);
    float* output = place(op.output, first, scratch.row(3));
    if (op.dropout.is_on) {
      const float* factors = dropped_row(op.row_numbers, row, op.dropout, scratch);
      for_each_vector(columns, [&](int64_t i, auto get, auto put) {
        put(normalised + i, dropped(get(product + i) + get(op.bias + i), get(factors + i)) + get(residual + i));
      });
    } else {
      for_each_vector(columns, [&](int64_t i, auto get, auto put) {
        put(normalised + i, get(product + i) + get(op.bias + i) + get(residual + i));
      });
    }
    const float rstd = normalise(normalised, columns, op.norm.eps);
    if (op.rstd != nullptr) {
      op.rstd[row] = rstd;
    }
    scale_and_shift(normalised, op.norm, columns, output);
    write(output, op.output, first, columns);
  }
}

void residual_layer_norm_backward(
    const ResidualLayerNormBackward& op, int64_t begin, int64_t end, int64_t columns, float* sums, float* memory) {
  const Scratch scratch{memory, columns};
  float* bias_sum = sums + 2 * columns;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * columns;
    const float* grad = read(op.grad_output, first, columns, scratch.row(0));
    float* residual = place(op.grad_residual, first, scratch.row(1));
    float* product = place(op.grad_product, first, scratch.row(2));
    norm_backward(grad, op.normalised + first, op.rstd[row], op.norm_weight, columns, sums, residual);
    if (op.dropout.is_on) {
      const float* factors = dropped_row(op.row_numbers, row, op.dropout, scratch);
      for_each_vector(columns, [&](int64_t i, auto get, auto put) {
        const Floats g = dropped(get(residual + i), get(factors + i));
        put(product + i, g);
        put(bias_sum + i, get(bias_sum + i) + g);
      });
    } else {
      for_each_vector(columns, [&](int64_t i, auto get, auto put) {
        const Floats g = get(residual + i);
        put(product + i, g);
        put(bias_sum + i, get(bias_sum + i) + g);
      });
    }
    write(residual, op.grad_residual, first, columns);
    write(product, op.grad_product, first, columns);
  }
}

void embedding_layer_norm(const EmbeddingLayerNorm& op, int64_t begin, int64_t end, int64_t columns, float* memory) {
  const Scratch scratch{memory, columns};
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * columns;
    const float* word = read(op.word, op.ids[row] * columns, columns, scratch.row(0));
    const float* position = read(op.position, op.positions[row] * columns, columns, scratch.row(1));
    const float* type = op.token_type + (op.token_types != nullptr ? op.token_types[row] * columns : 0);
    float* normalised = op.normalised != nullptr ? op.normalised + first : scratch.row(2);
    float* output = place(op.output, first, scratch.row(3));
    for_each_vector(columns, [&](int64_t i, auto get, auto put) {
      put(normalised + i, get(word + i) + get(type + i) + get(position + i));
    });
    const float rstd = normalise(normalised, columns, op.norm.eps);
    if (op.rstd != nullptr) {
      op.rstd[row] = rstd;
    }
    scale_and_shift(normalised, op.norm, columns, output);
    if (op.dropout.is_on) {
      drop_in_place(output, dropped_row(nullptr, row, op.dropout, scratch), columns);
    }
    write(output, op.output, first, columns);
  }
}

void embedding_layer_norm_backward(
    const EmbeddingLayerNormBackward& op, int64_t begin, int64_t end, int64_t columns, float* sums, float* memory) {
  const Scratch scratch{memory, columns};
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * columns;
    const float* grad = read(op.grad_output, first, columns, scratch.row(0));
    if (op.dropout.is_on) {
      const float* factors = dropped_row(nullptr, row, op.dropout, scratch);
      float* kept = scratch.row(1);
      for_each_vector(columns,
                      [&](int64_t i, auto get, auto put) { put(kept + i, dropped(get(grad + i), get(factors + i))); });
      grad = kept;
    }
    norm_backward(grad, op.normalised + first, op.rstd[row], op.norm_weight, columns, sums, op.grad_sum + first);
  }
}

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
