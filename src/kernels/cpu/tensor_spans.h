#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "kernels/cpu/simd/elements.h"
#include "kernels/dropout_site.h"

/// Tensors as the kernels take them.
namespace mezzo::kernels::cpu {

inline Element element_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return Element::kFloat;
    case at::kBFloat16: return Element::kBFloat16;
    case at::kHalf: return Element::kHalf;
    default: TORCH_INTERNAL_ASSERT(false, "no kernel for ", tensor.scalar_type());
  }
}

/// Elements of a contiguous tensor from `first` on.
inline ConstSpan read_span(const at::Tensor& tensor, int64_t first = 0) {
  return {static_cast<const char*>(tensor.const_data_ptr()) + first * tensor.element_size(), element_of(tensor)};
}

inline Span write_span(const at::Tensor& tensor, int64_t first = 0) {
  return {static_cast<char*>(tensor.mutable_data_ptr()) + first * tensor.element_size(), element_of(tensor)};
}

/// A vector as float32; a tensor that owns them.
inline at::Tensor as_float(const at::Tensor& vector) { return vector.to(at::kFloat).contiguous(); }

inline Dropout dropout_of(const DropoutSite& site) {
  return {site.p > 0, static_cast<uint32_t>(std::ldexp(site.p, 32)), static_cast<float>(1 / (1 - site.p)), site.key};
}

}  // namespace mezzo::kernels::cpu
