#pragma once

#include <ATen/core/Tensor.h>

/// Weights of linear layers that stay as they are, for prediction: rearranged once for the products, which else do that
/// for each batch.
namespace mezzo::encoder {

/// A weight [out, in] in `dtype`, in the same memory if it has that dtype. Panels lie behind it if Products on its
/// device multiply by panels (cpu::compute_packed). Changes in place do not reach them.
at::Tensor packed_weight(const at::Tensor& weight, at::ScalarType dtype);

/// Whether panels lie behind it, or behind the tensor that it is a view of.
bool is_packed_weight(const at::Tensor& weight);

}  // namespace mezzo::encoder
