#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <initializer_list>
#include <utility>

#include "kernels/cuda_library.h"
#include "kernels/kernel_image.h"

namespace mezzo {

/// A pointer for each device type, such as its kernels; nullptr if the type has none. Thread-safe. The first that is
/// asked for CUDA devices opens libmezzo_cuda.so.
template <class Pointer>
class PerDevice {
 public:
  /// @param of_cuda  the pointer of CUDA devices, unless another one is set
  PerDevice(Pointer CudaLibrary::* of_cuda, std::initializer_list<std::pair<c10::DeviceType, Pointer>> entries = {})
      : of_cuda_(of_cuda) {
    for (const auto& [device_type, entry] : entries) {
      set(device_type, entry);
    }
  }

  Pointer of(c10::DeviceType device_type) const {
    const Pointer entry = entries_[static_cast<size_t>(device_type)];
    const CudaLibrary* const cuda = entry == nullptr && device_type == c10::kCUDA ? cuda_library() : nullptr;
    return cuda != nullptr ? cuda->*of_cuda_ : entry;
  }
  /// That of the device's type; nullptr if mezzo's kernels cannot run on this device.
  Pointer of(c10::Device device) const {
    const Pointer entry = of(device.type());
    return entry != nullptr && kernels::has_kernel_image(device) ? entry : nullptr;
  }
  void set(c10::DeviceType device_type, Pointer entry) { entries_[static_cast<size_t>(device_type)] = entry; }

 private:
  Pointer CudaLibrary::* const of_cuda_;
  std::array<std::atomic<Pointer>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> entries_{};
};

}  // namespace mezzo
