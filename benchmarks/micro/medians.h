#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

constexpr int kWarmups = 3, kRuns = 21;

/// The candidates' medians in milliseconds, run in turn.
inline std::vector<double> medians_of(const std::vector<std::function<void()>>& candidates) {
  std::vector<std::vector<double>> milliseconds(candidates.size());
  for (int run = -kWarmups; run < kRuns; ++run) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      const auto begin = std::chrono::steady_clock::now();
      candidates[i]();
      const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - begin;
      if (run >= 0) {
        milliseconds[i].push_back(passed.count());
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
