#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simulated/device_test.h"
#include "simulated/launch.h"

/// The simulated devices catch mistakes that a GPU would let pass, most of the time. Each mistake
/// is made here once.

namespace mezzo::simulated {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

using FaultsTest = DeviceTest;

TEST_F(FaultsTest, WhoReadsTooEarlySeesNaN) {
  const auto there = at::ones({4}, device);
  auto here = at::zeros({4}).pin_memory();
  here.copy_(there, /*non_blocking=*/true);
  EXPECT_TRUE(here.isnan().all().item<bool>());
  synchronize();
  EXPECT_TRUE(at::equal(here, at::ones({4})));
}

TEST_F(FaultsTest, WhoOverwritesTooEarlySendsTheWrongValues) {
  const auto source = at::ones({4}).pin_memory();
  const auto there = at::empty({4}, device).copy_(source, /*non_blocking=*/true);
  source.fill_(2);
  EXPECT_EQ(there.sum().item<float>(), 8);
}

TEST_F(FaultsTest, FreshMemoryIsNaN) { EXPECT_TRUE(at::empty({4}, device).isnan().all().item<bool>()); }

TEST_F(FaultsTest, TheHostMayNotTouchMemoryOfADevice) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto there = at::ones({4}, device);
  synchronize();
  EXPECT_DEATH(static_cast<volatile const float*>(there.const_data_ptr())[0], "touched by the host, or by a kernel");
}

TEST_F(FaultsTest, AKernelMayNotTouchWhatItWasNotGiven) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto given = at::ones({4}, device), other = at::ones({4}, device);
  const auto read = [&](const at::Tensor& tensor) {
    Launch launch("reader");
    const auto seen = launch.read(given);
    launch.run_and_wait([&] { EXPECT_EQ(static_cast<const float*>(tensor.const_data_ptr())[0], 1.0f); });
  };
  read(given);
  EXPECT_DEATH(read(other), "touched by the host, or by a kernel that was not given it");
}

TEST_F(FaultsTest, AKernelNeedsTheGuardOfItsTensorsDevice) {
  const auto there = at::ones({4}, other_device);
  const auto launch = [&] {
    Launch kernel("doubling");
    const auto seen = kernel.write(there);
    kernel.run([=] { seen.mul_(2); });
  };
  EXPECT_THROW(launch(), c10::Error);
  const c10::DeviceGuard guard(there.device());
  launch();
  EXPECT_TRUE(at::equal(there.cpu(), at::full({4}, 2.0f)));
}

TEST_F(FaultsTest, DevicesAreNotMixed) {
  const auto a = at::ones({4}, device), b = at::ones({4}, other_device), here = at::ones({4});
  EXPECT_THROW(a + b, c10::Error);
  EXPECT_THROW(a + here, c10::Error);
  EXPECT_THROW(at::cat({a, b}), c10::Error);
  EXPECT_THROW(at::_foreach_add({a, b}, {b, a}), c10::Error);
  EXPECT_NO_THROW(a + here[0]) << "a number of the CPU's";
  EXPECT_THROW(at::zeros({}).add_(a[0]), c10::Error) << "the CPU's, to be written by the device";
  EXPECT_EQ(at::ones({1}, kType).device(), device) << "no index: the current device";
}

/// Work on another stream than the tests' own.
template <class Work>
auto on(c10::Stream stream, const Work& work) {
  const c10::StreamGuard guard(stream);
  return work();
}

TEST_F(FaultsTest, AReadNeedsAnEventAfterTheWrite) {
  const auto side = Queue::create(device);
  const auto x = at::ones({4}, device);
  const auto unordered = on(side, [&] { return x + 1; });
  expect_fault("aten::add.Tensor on stream");
  c10::Event written(kType);
  x.add_(1);
  written.record(current_stream(0));
  written.block(side);
  EXPECT_EQ(on(side, [&] { return (x + 1).sum().item<float>(); }), 12);
}

TEST_F(FaultsTest, AWriteNeedsAnEventAfterTheReads) {
  const auto side = Queue::create(device);
  const auto x = at::ones({4}, device);
  synchronize();  // orders the write before
  const auto read = on(side, [&] { return x + 1; });
  x.zero_();
  expect_fault("writes memory that aten::add.Tensor");
}

TEST_F(FaultsTest, AHostThatWaitedOrdersStreams) {
  const auto side = Queue::create(device);
  const auto x = at::ones({4}, device);
  const auto ready = (x + 1).sum().item<float>();
  EXPECT_EQ(on(side, [&] { return (x + ready).sum().item<float>(); }), 36);
}

TEST_F(FaultsTest, MemoryIsNotFreedWhileAnotherStreamUsesIt) {
  const auto side = Queue::create(device);
  for (const bool records : {false, true}) {
    auto x = at::ones({4}, device);
    synchronize();
    const auto y = on(side, [&] { return x + 1; });
    if (records) {
      x.record_stream(side);
    }
    x.reset();
    if (!records) {
      expect_fault("record_stream");
    }
    on(side, [&] { EXPECT_EQ(y.sum().item<float>(), 8); });
  }
}

TEST_F(FaultsTest, WhatAKernelThrowsArrivesLate) {
  const auto index = at::tensor({5}).to(device);
  const auto rows = at::ones({3, 2}, device).index_select(0, index);
  EXPECT_EQ(rows.sizes(), at::IntArrayRef({1, 2}));
  EXPECT_THROW(synchronize(), c10::Error);
}

}  // namespace
}  // namespace mezzo::simulated
