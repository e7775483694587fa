#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

/// Tensors that lie side by side in memory, so that they can be read as one.
namespace mezzo::encoder {

/// The tensor with the rows of all `tensors` in turn, in the same memory. Undefined unless the tensors are contiguous,
/// of one dtype and of the same sizes except the first. Each must also begin at the end of the previous one. To
/// autograd the result is a separate tensor, with a separate version.
at::Tensor side_by_side(at::TensorList tensors);

/// `count` parts of as many rows each of a contiguous tensor, in its memory. Each is, to autograd, a separate tensor,
/// with a separate version.
std::vector<at::Tensor> split_rows(const at::Tensor& tensor, int64_t count);

}  // namespace mezzo::encoder
