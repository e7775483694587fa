#pragma once

#include <c10/core/Device.h>

#include <string>

namespace mezzo::kernels {

/// "cpu"; a CUDA device with what its speed depends on, as "cuda:0 (NVIDIA H100 80GB HBM3, compute
/// capability 9.0, 85.0 GB, driver for CUDA 13.0)", if there is a libmezzo_cuda.so.
std::string describe_device(c10::Device device);

}  // namespace mezzo::kernels
