#pragma once

#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include <mutex>
#include <utility>
#include <vector>

namespace mezzo {

/// Puts the random numbers of the CPU, and of another device where there is one, back to where they were.
class RandomStateGuard {
 public:
  explicit RandomStateGuard(c10::DeviceType device_type = c10::kCPU) {
    keep(at::globalContext().defaultGenerator(c10::kCPU));
    if (device_type == c10::kCUDA && at::hasCUDA()) {
      keep(at::globalContext().defaultGenerator(device_type));
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
