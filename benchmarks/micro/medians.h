#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

constexpr int kWarmups = 3, kRuns = 21;

/// Waits until the device has done all that it was given.
inline void synchronize(const c10::Device& device) {
  if (!device.is_cpu()) {
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(std::max<c10::DeviceIndex>(device.index(), 0));
  }
}

/// Of a program whose one flag is --device.
inline c10::Device device_of(int argc, char** argv) {
  TORCH_CHECK(argc == 1 || (argc == 3 && std::string(argv[1]) == "--device"), "usage: ", argv[0], " [--device cuda]");
  return argc == 1 ? c10::Device(c10::kCPU) : c10::Device(argv[2]);
}

/// The candidates' medians in milliseconds, run in turn.
/// @param calls  of a candidate in a run, queued one after the other before the device is waited for
inline std::vector<double> medians_of(const std::vector<std::function<void()>>& candidates,
                                      const c10::Device& device = c10::kCPU,
                                      int calls = 1) {
  std::vector<std::vector<double>> milliseconds(candidates.size());
  for (int run = -kWarmups; run < kRuns; ++run) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      synchronize(device);
      const auto begin = std::chrono::steady_clock::now();
      for (int call = 0; call < calls; ++call) {
        candidates[i]();
      }
      synchronize(device);
      const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - begin;
      if (run >= 0) {
        milliseconds[i].push_back(passed.count() / calls);
      }
    }
  }
  std::vector<double> medians;
  for (auto& of_one : milliseconds) {
    std::sort(of_one.begin(), of_one.end());
    medians.push_back(of_one[of_one.size() / 2]);
  }
  return medians;
}
