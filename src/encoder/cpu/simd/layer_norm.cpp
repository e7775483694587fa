#include "encoder/cpu/simd/table.h"
#include "kernels/cpu/simd/convert.h"
#include "kernels/cpu/simd/philox.h"

namespace mezzo::encoder::cpu::MEZZO_SIMD {
namespace {

/// Rows that a kernel may need at a time, beside the factors of dropout.
constexpr int64_t kScratchRows = 5;

/// What a call has to itself: rows of H floats, and room for the factors of dropout.
struct Scratch {
  float* row(int64_t number) const { return memory + number * columns; }
  float* factors() const { return row(kScratchRows); }
  float* memory;
  int64_t columns;
};

/// The factors of dropout for row `row`, which counts as row
/// `row_numbers[row]`, if those are given.
const float* dropped_row(const int64_t* row_numbers, int64_t row, const Dropout& dropout, const Scratch& scratch) {
  const int64_t number = row_numbers != nullptr ? row_numbers[row] : row;
  return dropout_row(static_cast<uint64_t>(number * scratch.columns), scratch.columns, dropout, scratch.factors());
}

/// In place: the row less its mean, divided by its standard deviation. Returns one over that.
float normalise(float* row, int64_t columns, float eps) {
  Floats sums{};
  for_each_vector(columns, [&](int64_t i, auto get, auto) { sums += get(row + i); });
  const float mean = sum(sums) / static_cast<float>(columns);
  Floats squares{};
  for_vectors(
      columns,
      [&](int64_t i) {
        const Floats deviation = load(row + i) - mean;
        squares += deviation * deviation;
      },
      [&](int64_t i, int64_t left) {
        const Floats deviation = load_part(row + i, left) - mean;
        for (int64_t lane = 0; lane < left; ++lane) {
          squares[lane] += deviation[lane] * deviation[lane];
        }
      });
  const float rstd = 1 / __builtin_sqrtf(sum(squares) / static_cast<float>(columns) + eps);
  for_each_vector(columns, [&](int64_t i, auto get, auto put) { put(row + i, (get(row + i) - mean) * rstd); });
  return rstd;
}

void scale_and_shift(const float* normalised, const Norm& norm, int64_t columns, float* output) {
  for_each_vector(columns, [&](int64_t i, auto get, auto put) {
    put(output + i, get(normalised + i) * get(norm.weight + i) + get(norm.bias + i));
  });
}

void multiply_in_place(float* row, const float* factors, int64_t columns) {
  for_each_vector(columns, [&](int64_t i, auto get, auto put) { put(row + i, get(row + i) * get(factors + i)); });
}

/// From the gradient of a layer norm's output to that of its input. Adds to the sums
/// [2, H] for weight and bias.
void layer_norm_backward(const float* grad,
                         const float* normalised,
                         float rstd,
                         const float* weight,
                         int64_t columns,
                         float* sums,
                         float* grad_input) {
  float *weight_sum = sums, *bias_sum = sums + columns;
  Floats of_gradients{}, of_products{};
  for_each_vector(columns, [&](int64_t i, auto get, auto put) {
    const Floats g = get(grad + i), n = get(normalised + i), weighted = g * get(weight + i);
    put(weight_sum + i, get(weight_sum + i) + g * n);
    put(bias_sum + i, get(bias_sum + i) + g);
    of_gradients += weighted;
    of_products += weighted * n;
  });
  const float mean_gradient = sum(of_gradients) / static_cast<float>(columns);
  const float mean_product = sum(of_products) / static_cast<float>(columns);
  for_each_vector(columns, [&](int64_t i, auto get, auto put) {
    const Floats weighted = get(grad + i) * get(weight + i);
    put(grad_input + i, (weighted - mean_gradient - get(normalised + i) * mean_product) * rstd);
  });
}

}  // namespace

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
        put(normalised + i, (get(product + i) + get(op.bias + i)) * get(factors + i) + get(residual + i));
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
    layer_norm_backward(grad, op.normalised + first, op.rstd[row], op.norm_weight, columns, sums, residual);
    if (op.dropout.is_on) {
      const float* factors = dropped_row(op.row_numbers, row, op.dropout, scratch);
      for_each_vector(columns, [&](int64_t i, auto get, auto put) {
        const Floats g = get(residual + i) * get(factors + i);
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
      multiply_in_place(output, dropped_row(nullptr, row, op.dropout, scratch), columns);
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
      for_each_vector(columns, [&](int64_t i, auto get, auto put) { put(kept + i, get(grad + i) * get(factors + i)); });
      grad = kept;
    }
    layer_norm_backward(grad, op.normalised + first, op.rstd[row], op.norm_weight, columns, sums, op.grad_sum + first);
  }
}

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
