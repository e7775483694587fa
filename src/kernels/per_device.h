#pragma once

#include <c10/core/DeviceType.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <initializer_list>
#include <utility>

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
  void set(c10::DeviceType device_type, Pointer entry) { entries_[static_cast<size_t>(device_type)] = entry; }

 private:
  std::array<std::atomic<Pointer>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> entries_{};
};

}  // namespace mezzo
