#pragma once

#include "kernels/cuda/namespace.h"
#include "kernels/device_kernels.h"

/// DeviceKernels of CUDA devices, launched on the current stream.
namespace mezzo::kernels::MEZZO_CUDA {

MEZZO_FOR_DEVICE_KERNELS(MEZZO_DECLARE_KERNEL)
extern const DeviceKernels kDeviceKernels;

}  // namespace mezzo::kernels::MEZZO_CUDA
