#include "mezzo/memory/cpu_memory_pool.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace mezzo {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

/// The resident memory of the process, in bytes.
int64_t resident() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, pages = 0;
  statm >> size >> pages;
  return pages * getpagesize();
}

at::Tensor written(int64_t bytes) { return at::empty({bytes}, at::kByte).fill_(1); }

/// In a separate process: the pool serves all that comes after it.
class CpuMemoryPoolDeathTest : public testing::Test {
 protected:
  void SetUp() override {
#if !defined(__linux__) || defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "there is no pool here";
#endif
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

/// Ends the process; a failure is the first line on stderr.
[[noreturn]] void end(const std::string& failure) {
  std::cerr << (failure.empty() ? "as it should be" : failure) << std::endl;
  std::_Exit(failure.empty() ? 0 : 1);
}

void touch_one_size_after_another() {
  use_cpu_memory_pool();
  written(kMebibyte);
  const int64_t before = resident();
  for (int64_t size = 16; size <= 56; ++size) {
    written(size * kMebibyte);
  }
  const int64_t taken = resident() - before;
  const auto stats = cpu_memory_stats();
  // 56 MiB, and pages at the edges. All sizes side by side would take 1,476.
  const bool is_good = taken < 70 * kMebibyte && stats.reserved < 70 * kMebibyte && stats.peak_in_use < 57 * kMebibyte;
  end(is_good
          ? ""
          : "took " + std::to_string(taken / kMebibyte) + " MiB, says " + std::to_string(stats.reserved / kMebibyte));
}

TEST_F(CpuMemoryPoolDeathTest, OneSizeAfterAnotherStaysInTheMemoryOfTheLargest) {
  EXPECT_EXIT(touch_one_size_after_another(), testing::ExitedWithCode(0), "as it should be");
}

void fill_with_small_then_with_large_ones() {
  use_cpu_memory_pool();
  const int64_t before = resident();
  std::vector<at::Tensor> small;
  for (int i = 0; i < 300; ++i) {
    small.push_back(at::empty({kMebibyte}, at::kByte).fill_(i % 251));
  }
  const std::vector<at::Tensor> kept = {small[0], small[150], small[299]};
  small.clear();
  std::vector<at::Tensor> large;
  for (int i = 0; i < 10; ++i) {
    large.push_back(written(30 * kMebibyte));
  }
  const int64_t taken = resident() - before;
  const auto stats = cpu_memory_stats();
  std::string failure;
  for (const int64_t i : {0, 1, 2}) {
    failure = kept[i].eq(i == 0 ? 0 : i == 1 ? 150 : 48).all().item<bool>() ? failure : "a tensor was given back";
  }
  // 303 MiB in use and half as much again. All side by side would take 600.
  if (taken > 470 * kMebibyte || std::abs(taken - stats.reserved) > 16 * kMebibyte) {
    failure = "took " + std::to_string(taken / kMebibyte) + " MiB, says " + std::to_string(stats.reserved / kMebibyte);
  }
  mezzo::end(failure);
}

TEST_F(CpuMemoryPoolDeathTest, GivesTheSystemBackWhatItHolds) {
  EXPECT_EXIT(fill_with_small_then_with_large_ones(), testing::ExitedWithCode(0), "as it should be");
}

void allocate_on_threads() {
  use_cpu_memory_pool();
  std::atomic<bool> is_good = true;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, &is_good] {
      std::mt19937 random(t);
      std::vector<std::pair<at::Tensor, uint8_t>> live;
      for (int i = 0; i < 2000; ++i) {
        const auto value = static_cast<uint8_t>(random());
        live.emplace_back(at::empty({static_cast<int64_t>(random() % 300000) + 1}, at::kByte), value);
        auto* data = live.back().first.mutable_data_ptr<uint8_t>();
        data[0] = data[live.back().first.numel() - 1] = value;
        if (live.size() > 30) {
          std::swap(live[random() % live.size()], live.back());
          const auto& [tensor, expected] = live.back();
          const auto* bytes = tensor.const_data_ptr<uint8_t>();
          is_good = is_good && bytes[0] == expected && bytes[tensor.numel() - 1] == expected;
          live.pop_back();
        }
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  const auto stats = cpu_memory_stats();
  end(!is_good ? "a tensor was overwritten" : stats.in_use != 0 ? "memory was lost" : "");
}

TEST_F(CpuMemoryPoolDeathTest, TensorsOfManyThreadsKeepTheirValues) {
  EXPECT_EXIT(allocate_on_threads(), testing::ExitedWithCode(0), "as it should be");
}

}  // namespace
}  // namespace mezzo
