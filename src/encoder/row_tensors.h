#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

/// Tensors of rows, as every kind of device takes them.
namespace mezzo::encoder {

inline const int64_t* numbers(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<int64_t>() : nullptr;
}

inline at::Tensor empty_rows(const at::Tensor& like, at::ScalarType dtype) {
  return at::empty(like.sizes(), like.options().dtype(dtype));
}

}  // namespace mezzo::encoder
