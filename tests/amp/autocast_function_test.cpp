#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <thread>
#include <vector>

#include "mezzo/amp/autocast_guard.h"

namespace mezzo {
namespace {

TEST(AutocastFunctionTest, IsConstAndRunsOnSeveralThreads) {
  const auto product = autocast(torch::kCPU, torch::kBFloat16, [](const torch::Tensor& x) { return x.mm(x); });
  const auto x = torch::ones({2, 2});
  std::atomic<int> halves = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { halves += product(x).scalar_type() == torch::kBFloat16; });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(halves, 4);
}

TEST(AutocastFunctionTest, MayHaveStateOfItsOwn) {
  auto count = autocast(torch::kCPU, torch::kBFloat16, [n = 0]() mutable { return ++n; });
  EXPECT_EQ(count(), 1);
  EXPECT_EQ(count(), 2);
  EXPECT_FALSE(std::is_invocable_v<const decltype(count)>);
}

}  // namespace
}  // namespace mezzo
