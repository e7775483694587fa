#pragma once

#include "amp/cross_entropy.h"
#include "kernels/cuda/namespace.h"

namespace mezzo::MEZZO_CUDA {

extern const CrossEntropyKernels kCrossEntropyKernels;

}  // namespace mezzo::MEZZO_CUDA
