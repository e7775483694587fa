#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"
#include "kernels/element.h"

/// What kernels are told; plain data, for nvcc as for those who call them.
namespace mezzo::kernels::MEZZO_CUDA {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// A CUDA stream, as c10::Stream::native_handle() gives it.
using Stream = void*;

using kernels::Element;

/// Elements somewhere in device memory, or none.
struct Span {
  void* data = nullptr;
  Element element = Element::kFloat;
};

/// The limits of a device.
struct DeviceLimits {
  int multiprocessors;
  int shared_bytes;  ///< that a block may ask for
};
/// Of the current device.
DeviceLimits device_limits();

}  // namespace mezzo::kernels::MEZZO_CUDA
