#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

/// Tensors that lie side by side in memory, so that they can be read as one.
namespace mezzo::encoder {

/// The tensor whose rows are those of all `tensors` in turn, in the same memory. Undefined unless
/// they are contiguous, of one dtype, alike but for the number of rows, and each begins where the
/// one before ends. To autograd it is a tensor of its own, with a version of its own.
at::Tensor side_by_side(at::TensorList tensors);

/// `count` parts of as many rows each of a contiguous tensor, in its memory. Each is, to
/// autograd, a tensor of its own, with a version of its own.
std::vector<at::Tensor> split_rows(const at::Tensor& tensor, int64_t count);

/// `convert` of each tensor. What lies side by side is converted as one vector, and lies so
/// afterwards; `convert` keeps the number of elements. Autograd does not see it.
std::vector<at::Tensor> convert_together(const std::vector<at::Tensor>& tensors,
                                         const std::function<at::Tensor(const at::Tensor& tensor)>& convert);

}  // namespace mezzo::encoder
