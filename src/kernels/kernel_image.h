#pragma once

#include <c10/core/Device.h>

#include <string>

namespace mezzo::kernels {

/// Whether mezzo's kernels for a type of devices can run on this one. A CUDA device may be of a compute capability that
/// mezzo was not compiled for; the first call then warns, and LibTorch's operations run instead. Thread-safe; never
/// waits for the device. The answer is kept.
/// @throws std::runtime_error  if CUDA reports another error
bool has_kernel_image(c10::Device device);

/// Why kernels cannot run on a device; empty if they can.
using WhyNoKernelImage = std::string (*)(int device);

/// For tests: the check for a type of devices; nullptr: all have an image, as is so initially except for CUDA.
void set_kernel_image_check(c10::DeviceType device_type, WhyNoKernelImage check);

}  // namespace mezzo::kernels
