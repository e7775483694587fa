#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

/// Tensors without gaps, such as channels_last weights, are one array to kernels over elements.
namespace mezzo::kernels {

/// Whether both are dense, and element i in memory has the same index in both. Strides of
/// dimensions of size 1 do not matter.
inline bool same_dense_layout(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_non_overlapping_and_dense() || !b.is_non_overlapping_and_dense() || a.dim() != b.dim()) {
    return false;
  }
  for (int64_t i = 0; i < a.dim(); ++i) {
    if (a.size(i) != b.size(i) || (a.size(i) > 1 && a.stride(i) != b.stride(i))) {
      return false;
    }
  }
  return true;
}

/// `tensor`, or a copy that is dense.
inline at::Tensor dense(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
}

/// `tensor`, or a copy of it in the layout of `other`, which is dense and has the same sizes.
inline at::Tensor in_layout_of(const at::Tensor& other, const at::Tensor& tensor) {
  return same_dense_layout(tensor, other) ? tensor : at::empty_like(other, tensor.options()).copy_(tensor);
}

}  // namespace mezzo::kernels
