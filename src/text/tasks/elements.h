#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace mezzo::text {

/// @param tensor  contiguous, on CPU, of that dtype.
template <class T>
std::span<const T> elements(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<T>(), static_cast<size_t>(tensor.numel())};
}

}  // namespace mezzo::text
