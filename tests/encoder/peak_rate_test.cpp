#include "encoder/cpu/peak_rate.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace mezzo::encoder::cpu {
namespace {

constexpr double kOperations = 8;  // of a round

std::atomic<int64_t> rounds_done = 0;

float sleep_a_microsecond_each(int64_t rounds) {
  rounds_done += rounds;
  std::this_thread::sleep_for(std::chrono::microseconds(rounds));
  return 0;
}

/// However busy the machine is: a sleep is never too short, and the measurement lies within `seconds`.
TEST(PeakRateTest, CountsTheOperationsOfAllThreads) {
  const PeakRate peak({sleep_a_microsecond_each, kOperations});
  rounds_done = 0;
  const auto begin = std::chrono::steady_clock::now();
  const double rate = peak.measure();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_GE(rate * seconds, kOperations * static_cast<double>(rounds_done) * (1 - 1e-12));
  EXPECT_LE(rate, kOperations * 1e6 * at::get_num_threads());
}

TEST(PeakRateTest, IsZeroWithoutAnInstruction) { EXPECT_EQ(PeakRate({}).measure(), 0); }

}  // namespace
}  // namespace mezzo::encoder::cpu
