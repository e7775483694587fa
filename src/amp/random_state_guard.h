#pragma once

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace mezzo {

/// States of random-number generators. A CUDA device's state is kept on the host: nothing waits.
class RandomStates {
 public:
  RandomStates() = default;
  /// Of the CPU, and of all devices of another type if there are any.
  explicit RandomStates(c10::DeviceType device_type) {
    add(c10::kCPU);
    if (device_type != c10::kCPU && c10::impl::hasDeviceGuardImpl(device_type)) {
      const auto count = c10::impl::getDeviceGuardImpl(device_type)->deviceCount();
      for (c10::DeviceIndex i = 0; i < count; ++i) {
        add({device_type, i});
      }
    }
  }

  /// The default generator of a device, unless it is there already.
  void add(c10::Device device) { add(at::globalContext().defaultGenerator(device)); }
  void add(at::Generator generator) {
    if (std::ranges::none_of(states_, [&](const auto& each) { return each.first == generator; })) {
      const std::lock_guard lock(generator.mutex());
      at::Tensor state = generator.get_state();
      states_.emplace_back(std::move(generator), std::move(state));
    }
  }

  /// The present states of the same generators.
  RandomStates now() const {
    RandomStates present;
    for (const auto& [generator, state] : states_) {
      present.add(generator);
    }
    return present;
  }

  void set() const {
    for (auto [generator, state] : states_) {
      const std::lock_guard lock(generator.mutex());
      generator.set_state(state);
    }
  }

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// Sets generators to these states when it ends.
class RandomStateGuard {
 public:
  explicit RandomStateGuard(RandomStates states) : states_(std::move(states)) {}
  explicit RandomStateGuard(c10::DeviceType device_type = c10::kCPU) : states_(device_type) {}
  ~RandomStateGuard() { states_.set(); }
  RandomStateGuard(const RandomStateGuard&) = delete;
  RandomStateGuard& operator=(const RandomStateGuard&) = delete;

 private:
  const RandomStates states_;
};

}  // namespace mezzo
