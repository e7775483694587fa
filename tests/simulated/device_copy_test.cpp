#include "memory/device_copy.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simulated/device_test.h"

/// Copies to a device wait for nothing, and those to the CPU have arrived.

namespace mezzo::simulated {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

using DeviceCopyTest = DeviceTest;

TEST_F(DeviceCopyTest, ToADeviceWaitsForNothing) {
  for (const auto& values : {at::tensor({1.0f, 2.0f}), at::tensor({1.0f, 2.0f}).pin_memory()}) {
    const Watch watch;
    const auto there = copy_to(values, device), as_half = copy_to(values, other_device, at::kHalf);
    const auto on_other = copy_to(there, other_device);
    EXPECT_THAT(watch.host_syncs(), IsEmpty());
    if (!values.is_pinned()) {
      values.zero_();  // theirs are values of before
    }
    EXPECT_TRUE(at::equal(there.cpu(), at::tensor({1.0f, 2.0f})));
    EXPECT_TRUE(at::equal(as_half.cpu(), at::tensor({1.0f, 2.0f}).to(at::kHalf)));
    EXPECT_TRUE(at::equal(on_other.cpu(), at::tensor({1.0f, 2.0f})));
  }
}

TEST_F(DeviceCopyTest, ToTheCpuHasArrived) {
  const auto there = at::tensor({1.0f, 2.0f}).to(device) + 1;
  const Watch watch;
  EXPECT_TRUE(at::equal(copy_to(there, at::kCPU), at::tensor({2.0f, 3.0f})));
  EXPECT_TRUE(at::equal(copy_to(there, at::kCPU, at::kDouble), at::tensor({2.0, 3.0}, at::kDouble)));
  EXPECT_THAT(watch.host_syncs(), SizeIs(2));
}

TEST_F(DeviceCopyTest, ToTheHostIsWaitedForWhenItIsRead) {
  const auto there = at::tensor({1.0f, 2.0f}).to(other_device);
  const Watch watch;
  HostCopy copy(there);
  there.add_(1);  // the copy is of before
  EXPECT_THAT(watch.host_syncs(), IsEmpty());
  EXPECT_TRUE(at::equal(copy.wait(), at::tensor({1.0f, 2.0f})));
  EXPECT_TRUE(at::equal(copy.wait(), at::tensor({1.0f, 2.0f})));
  EXPECT_THAT(watch.host_syncs(), SizeIs(1));
  const auto here = at::ones({});
  EXPECT_TRUE(HostCopy(here).wait().is_same(here));
}

}  // namespace
}  // namespace mezzo::simulated
