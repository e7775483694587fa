#pragma once

#include <ATen/core/Tensor.h>

#include "encoder/cuda/attention_launchers.h"
#include "encoder/sequence_layout.h"
#include "kernels/cuda/tensors.h"

/// Tensors as the kernels of attention take them.
namespace mezzo::encoder::MEZZO_CUDA {

/// The elements of a contiguous tensor; nullptr of one that is undefined.
inline float* floats_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}

inline SequenceSpans spans_of(const SequenceLayout& layout, int64_t num_rows) {
  return {layout.table().const_data_ptr<int32_t>(), layout.size(), num_rows, static_cast<int>(layout.longest())};
}

/// Of a matrix whose columns lie side by side.
inline RowsSpan rows_of(const at::Tensor& matrix) { return {span_of(matrix), matrix.stride(0)}; }

}  // namespace mezzo::encoder::MEZZO_CUDA
