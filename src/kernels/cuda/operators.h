#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/cuda/namespace.h"
#include "kernels/random_key.h"

/// What the operators of kernels/ run on a CUDA device, launched on its current stream; nothing waits for the device.
namespace mezzo::kernels::MEZZO_CUDA {

/// One application of the mask, without autograd. `x`: float32, bfloat16 or float16, contiguous.
at::Tensor dropout(const at::Tensor& x, double p, const RandomKey& key);

}  // namespace mezzo::kernels::MEZZO_CUDA
