#pragma once

#include "encoder/cpu/simd/dropout_mask.h"
#include "encoder/cpu/simd/kernels.h"
#include "kernels/cpu/simd/convert.h"
#include "kernels/cpu/simd/simd.h"

/// The work of layer norms' kernels on one row.
namespace mezzo::encoder::cpu::MEZZO_SIMD {

using namespace kernels::cpu::MEZZO_SIMD;  // vectors, and elements loaded into them

/// Rows that a kernel may need at a time, beside the factors of dropout.
constexpr int64_t kScratchRows = 5;

/// A call's scratch memory: rows of H floats, and the factors of dropout.
struct Scratch {
  float* row(int64_t number) const { return memory + number * columns; }
  float* factors() const { return row(kScratchRows); }
  float* memory;
  int64_t columns;
};

/// The factors of dropout for row `row`, which counts as row
/// `row_numbers[row]`, if those are given.
inline const float* dropped_row(const int64_t* row_numbers,
                                int64_t row,
                                const Dropout& dropout,
                                const Scratch& scratch) {
  const int64_t number = row_numbers != nullptr ? row_numbers[row] : row;
  return dropout_row(static_cast<uint64_t>(number * scratch.columns), scratch.columns, dropout, scratch.factors());
}

/// In place: the row less its mean, divided by its standard deviation. Returns one over that.
inline float normalise(float* row, int64_t columns, float eps) {
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

inline void scale_and_shift(const float* normalised, const Norm& norm, int64_t columns, float* output) {
  for_each_vector(columns, [&](int64_t i, auto get, auto put) {
    put(output + i, get(normalised + i) * get(norm.weight + i) + get(norm.bias + i));
  });
}

inline void drop_in_place(float* row, const float* factors, int64_t columns) {
  for_each_vector(columns,
                  [&](int64_t i, auto get, auto put) { put(row + i, dropped(get(row + i), get(factors + i))); });
}

/// From the gradient of a layer norm's output to that of its input. Adds to the sums
/// [2, H] for weight and bias.
inline void norm_backward(const float* grad,
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

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
