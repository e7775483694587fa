#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <initializer_list>
#include <utility>

#include "kernels/kernel_image.h"

namespace mezzo {

/// A pointer for each device type, such as its kernels; nullptr if the type has none. Thread-safe.
template <class Pointer>
class PerDevice {
 public:
  PerDevice(std::initializer_list<std::pair<c10::DeviceType, Pointer>> entries = {}) {
    for (const auto& [device_type, entry] : entries) {
      set(device_type, entry);
    }
  }

  Pointer of(c10::DeviceType device_type) const { return entries_[static_cast<size_t>(device_type)]; }
  /// That of the device's type; nullptr if mezzo's kernels cannot run on this device.
  Pointer of(c10::Device device) const {
    const Pointer entry = of(device.type());
    return entry != nullptr && kernels::has_kernel_image(device) ? entry : nullptr;
  }
  void set(c10::DeviceType device_type, Pointer entry) { entries_[static_cast<size_t>(device_type)] = entry; }

 private:
  std::array<std::atomic<Pointer>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> entries_{};
};

}  // namespace mezzo
