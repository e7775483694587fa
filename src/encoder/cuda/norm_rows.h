#pragma once

#include <cmath>
#include <cstdint>

#include "encoder/cuda/columns.h"
#include "encoder/cuda/row_launchers.h"

/// Code that the kernels that normalise share. Forward, a block a row, which it holds in shared memory; backward, a
/// warp.
namespace mezzo::encoder::MEZZO_CUDA {

constexpr int kNormThreads = 128;
constexpr int kNormSumsBytes = kNormThreads / kWarp * static_cast<int>(sizeof(float));

inline int row_bytes(int64_t rows, int64_t columns) {
  return static_cast<int>(rows * columns * int64_t{sizeof(float)});
}

/// A block for each row, with memory for the sums of its warps.
inline Grid norm_grid(int64_t rows, int64_t columns) {
  return {rows, kNormThreads, kNormSumsBytes + row_bytes(1, columns)};
}

/// Finishes a layer norm of the row in shared memory; each thread knows its part of the row's sum.
template <bool kWhole>
MEZZO_DEVICE void finish_norm(const Block& block,
                              float* row,
                              float* scratch,
                              float part_of_sum,
                              const NormArguments& norm,
                              const Mask& output_mask,
                              int64_t number,
                              const NormOutputs& to,
                              int64_t columns) {
  const int64_t begin = number * columns, end = begin + columns;
  const float mean = block_sum(block, part_of_sum, scratch) / static_cast<float>(columns);
  float squares = 0;
  for_columns(block, columns, [&](int64_t c) {
    for (int i = 0; i < 4; ++i) {
      if (counts(c, i, columns)) {
        const float deviation = row[c + i] - mean;
        squares += deviation * deviation;
      }
    }
  });
  block.sync();  // before the scratch is used again
  const float variance = block_sum(block, squares, scratch) / static_cast<float>(columns);
  const float rstd = 1 / ::sqrtf(variance + norm.eps);
  for_columns(block, columns, [&](int64_t c) {
    const Four weight = Fours<kWhole>::load(norm.weight, c, columns),
               bias = Fours<kWhole>::load_if_any(norm.bias, c, columns),
               factors = mask_four<kWhole>(output_mask, begin + c);
    Four normalised{}, output{};
    for (int i = 0; i < 4; ++i) {
      normalised.at[i] = counts(c, i, columns) ? (row[c + i] - mean) * rstd : 0;
      output.at[i] = masked(normalised.at[i] * weight.at[i] + bias.at[i], factors.at[i]);
    }
    Fours<kWhole>::store(to.output, begin + c, end, output);
    if (to.copy.data != nullptr) {
      Fours<kWhole>::store(to.copy, begin + c, end, output);
    }
    if (to.normalised.data != nullptr) {
      Fours<kWhole>::store(to.normalised, begin + c, end, normalised);
    }
  });
  if (to.rstd != nullptr && block.thread() == 0) {
    to.rstd[number] = rstd;
  }
}

template <class Memory>
void uses_of_norm(Memory& memory, const NormArguments& norm, const NormOutputs& to, int64_t rows, int64_t columns) {
  memory.reads(norm.weight, columns);
  memory.reads(norm.bias, columns);
  memory.writes(to.output, rows * columns);
  memory.writes(to.copy, rows * columns);
  memory.writes(to.normalised, rows * columns);
  memory.writes(to.rstd, rows);
}

}  // namespace mezzo::encoder::MEZZO_CUDA
