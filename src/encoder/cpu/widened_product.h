#pragma once

#include <ATen/core/Tensor.h>

namespace mezzo::encoder::cpu {

/// output = [output +] a b in float32, by MKL if it is fast for bfloat16, else of converted factors. Autograd must be
/// off.
/// @param output  [M, N], float32
/// @param a  [M, K], bfloat16 or float16
/// @param b  [K, N], of the same dtype
void widened_product(at::Tensor& output, const at::Tensor& a, const at::Tensor& b, bool adds);

/// The same by MKL, which is part of LibTorch for x86. No operator of LibTorch multiplies half types
/// into float32 on CPUs.
/// @return false, with `output` unchanged, without MKL, for float16, or if rows or columns are not contiguous
bool widened_product_of_mkl(at::Tensor& output, const at::Tensor& a, const at::Tensor& b, bool adds);

}  // namespace mezzo::encoder::cpu
