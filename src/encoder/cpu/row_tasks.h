#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include "encoder/block_ops.h"
#include "encoder/cpu/simd/kernels.h"
#include "encoder/row_tensors.h"
#include "kernels/cpu/share_out.h"

/// How row-by-row work is shared out among threads.
namespace mezzo::encoder::cpu {

/// Rows of one task. Fixed, so that sums over rows are split in the same way
/// for any number of threads.
constexpr int64_t kRows = 32;

constexpr int64_t kAdditionsOfATask = 16384;  // fewer take less time than it takes to wake a thread

inline int64_t num_tasks(int64_t rows) { return (rows + kRows - 1) / kRows; }

/// Calls `compute(begin, end, scratch)` for all rows, in parallel.
template <class Compute>
void for_rows(int64_t rows, int64_t columns, const Compute& compute) {
  kernels::cpu::share_out(num_tasks(rows), [&](const auto& next) {
    std::vector<float> scratch(simd_kernels().row_scratch(columns));
    for (int64_t task = next(); task >= 0; task = next()) {
      compute(task * kRows, std::min(rows, (task + 1) * kRows), scratch.data());
    }
  });
}

/// The same, with `compute(begin, end, sums, scratch)` adding to sums [num_sums, columns].
/// Returns the total, float32.
template <class Compute>
at::Tensor for_rows_with_sums(int64_t rows, int64_t columns, int64_t num_sums, const Compute& compute) {
  const int64_t size = num_sums * columns;
  const auto partial = at::zeros({std::max<int64_t>(num_tasks(rows), 1), num_sums, columns}, at::kFloat);
  auto* sums = partial.mutable_data_ptr<float>();
  for_rows(rows, columns, [&](int64_t begin, int64_t end, float* scratch) {
    compute(begin, end, sums + begin / kRows * size, scratch);
  });
  const int64_t tasks = num_tasks(rows);
  at::parallel_for(0, size, std::max<int64_t>(kAdditionsOfATask / std::max<int64_t>(tasks, 1), 64),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t task = 1; task < tasks; ++task) {
                       for (int64_t i = begin; i < end; ++i) {
                         sums[i] += sums[task * size + i];
                       }
                     }
                   });
  return partial.select(0, 0);
}

/// Memory for backward's inputs, if requested.
inline void make_room(Normalised* normalised, const at::Tensor& rows) {
  if (normalised != nullptr) {
    normalised->rows = rows;
    normalised->rstd = at::empty({rows.size(0)}, at::kFloat);
  }
}

}  // namespace mezzo::encoder::cpu
