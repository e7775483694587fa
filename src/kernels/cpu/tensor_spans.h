#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/cpu/simd/elements.h"
#include "kernels/dtypes.h"

/// Tensors as the kernels take them.
namespace mezzo::kernels::cpu {

/// Elements of a contiguous tensor from `first` on.
inline ConstSpan read_span(const at::Tensor& tensor, int64_t first = 0) {
  return {static_cast<const char*>(tensor.const_data_ptr()) + first * tensor.element_size(),
          element_of(tensor.scalar_type())};
}

inline Span write_span(const at::Tensor& tensor, int64_t first = 0) {
  return {static_cast<char*>(tensor.mutable_data_ptr()) + first * tensor.element_size(),
          element_of(tensor.scalar_type())};
}

}  // namespace mezzo::kernels::cpu
