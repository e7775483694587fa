#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "encoder/block_ops.h"
#include "encoder/cuda/row_launchers.h"
#include "encoder/row_tensors.h"
#include "kernels/cuda/tensors.h"
#include "memory/side_stream.h"

/// Tensors as the row-wise kernels take them, and sums that they leave in parts.
namespace mezzo::encoder::MEZZO_CUDA {

inline const float* floats(const at::Tensor& vector) { return vector.const_data_ptr<float>(); }

/// Memory for backward's inputs, if requested: `rows` and a number each.
inline NormOutputs outputs_of(const at::Tensor& output, Normalised* normalised, const at::Tensor& rows) {
  if (normalised == nullptr) {
    return {span_of(output), {}, {}, nullptr};
  }
  normalised->rows = rows;
  normalised->rstd = at::empty({rows.size(0)}, rows.options().dtype(at::kFloat));
  return {span_of(output), {}, span_of(rows), normalised->rstd.mutable_data_ptr<float>()};
}

/// In a SideStream.
inline at::Tensor column_sums(const at::Tensor& parts) {
  const int64_t rows = parts.size(0), columns = parts.numel() / std::max<int64_t>(rows, 1);
  if (rows == 0) {
    return at::zeros(parts.sizes().slice(1), parts.options());
  }
  auto totals = at::empty(parts.sizes().slice(1), parts.options());
  if (columns > 0) {
    SideStream::run({totals, parts}, [&] {
      const OnDeviceOf device(parts);
      sum_columns({floats(parts), totals.mutable_data_ptr<float>(), rows, columns}, device.stream);
    });
  }
  return totals;
}

/// The sums [3, H] of a backward pass, whose arguments lack only the memory for partial sums.
inline at::Tensor run_backward(NormBackwardArguments arguments, const at::TensorOptions& options, Stream stream) {
  const auto parts =
      at::empty({norm_parts(arguments.rows, arguments.columns), 3, arguments.columns}, options.dtype(at::kFloat));
  if (parts.numel() > 0) {
    arguments.sums = parts.mutable_data_ptr<float>();
    layer_norm_backward(arguments, stream);
  }
  return column_sums(parts);
}

}  // namespace mezzo::encoder::MEZZO_CUDA
