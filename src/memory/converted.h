#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <vector>

namespace mezzo {

/// `tensors`, all of one dtype, in `dtype`. Tensors that fill a storage together fill one again, in the same places.
/// Every other tensor gets dense memory. Autograd does not see it: each result has a separate version.
std::vector<at::Tensor> converted(const std::vector<at::Tensor>& tensors, c10::ScalarType dtype);

}  // namespace mezzo
