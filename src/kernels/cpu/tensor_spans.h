#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>

#include "kernels/cpu/simd/elements.h"
#include "kernels/dropout_site.h"
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

/// A vector as float32; a tensor that owns them.
inline at::Tensor as_float(const at::Tensor& vector) { return vector.to(at::kFloat).contiguous(); }

/// A bias as float32, rounded to the dtype of the product that it is added to.
inline at::Tensor rounded_bias(const at::Tensor& bias, at::ScalarType dtype) { return as_float(bias.to(dtype)); }

inline Dropout dropout_of(const DropoutSite& site) {
  return {site.p > 0, static_cast<uint32_t>(std::ldexp(site.p, 32)), static_cast<float>(1 / (1 - site.p)), site.key};
}

}  // namespace mezzo::kernels::cpu
