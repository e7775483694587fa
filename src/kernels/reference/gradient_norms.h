#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace mezzo::kernels::reference {

/// The norm of each gradient of one device, as a vector of `dtype`. Gradients without elements are left
/// out, because LibTorch refuses their largest magnitude; {0} if none is left.
at::Tensor gradient_norms(std::vector<at::Tensor> gradients, double norm_type, at::ScalarType dtype);

/// float64 for float64, else float32.
inline at::ScalarType float32_or_wider(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

}  // namespace mezzo::kernels::reference
