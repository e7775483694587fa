#pragma once

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <mutex>
#include <utility>
#include <vector>

namespace mezzo {

/// Puts the random numbers of the CPU, and of all devices of another type where there are
/// any, back to where they were; or those of one generator. A CUDA device's state is kept on
/// the host: nothing waits.
class RandomStateGuard {
 public:
  explicit RandomStateGuard(at::Generator generator) { keep(std::move(generator)); }
  explicit RandomStateGuard(c10::DeviceType device_type = c10::kCPU) {
    keep(at::globalContext().defaultGenerator(c10::kCPU));
    if (device_type != c10::kCPU && c10::impl::hasDeviceGuardImpl(device_type)) {
      const auto count = c10::impl::getDeviceGuardImpl(device_type)->deviceCount();
      for (c10::DeviceIndex i = 0; i < count; ++i) {
        keep(at::globalContext().defaultGenerator({device_type, i}));
      }
    }
  }
  ~RandomStateGuard() {
    for (auto& [generator, state] : states_) {
      const std::lock_guard lock(generator.mutex());
      generator.set_state(state);
    }
  }
  RandomStateGuard(const RandomStateGuard&) = delete;
  RandomStateGuard& operator=(const RandomStateGuard&) = delete;

 private:
  void keep(at::Generator generator) {
    const std::lock_guard lock(generator.mutex());
    at::Tensor state = generator.get_state();
    states_.emplace_back(std::move(generator), std::move(state));
  }

  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

}  // namespace mezzo
