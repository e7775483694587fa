#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "memory/side_stream.h"
#include "simulated/device_test.h"

namespace mezzo::simulated {
namespace {

class SideStreamDeviceTest : public DeviceTest {
 protected:
  /// The stream that a body runs on.
  c10::Stream stream_of_body() const {
    std::optional<c10::Stream> found;
    SideStream::run({x}, [&] { found = current_stream(0); });
    return *found;
  }

  const at::Tensor x = at::ones({3}, device);
};

TEST_F(SideStreamDeviceTest, WorkIsBesideAndThereWhenItIsGone) {
  const auto output = at::empty({3}, device);
  const Watch watch;
  {
    const auto input = x + 1;
    const SideStream aside;
    SideStream::run({output, input}, [&] { at::mul_out(const_cast<at::Tensor&>(output), input, input); });
  }
  const auto sum = output.sum();
  EXPECT_THAT(watch.host_syncs(), testing::IsEmpty());
  EXPECT_EQ(sum.item<float>(), 12);
}

TEST_F(SideStreamDeviceTest, ItsTensorsLiveAsLongAsTheirWork) {
  const auto output = at::empty({3}, device);
  {
    const SideStream aside;
    const auto input = x + 1;  // of which the body is the only user
    SideStream::run({output, input}, [&] { at::mul_out(const_cast<at::Tensor&>(output), input, input); });
  }
  EXPECT_EQ(output.sum().item<float>(), 12);
}

TEST_F(SideStreamDeviceTest, WhoReadsBeforeIsFoundOut) {
  const auto output = at::empty({3}, device);
  {
    const SideStream aside;
    SideStream::run({output, x}, [&] { at::mul_out(const_cast<at::Tensor&>(output), x, x); });
    output.sum();
  }
  expect_fault("no event puts the two in order");
}

TEST_F(SideStreamDeviceTest, IsTheThreadsInnermostOne) {
  const auto here = current_stream(0);
  EXPECT_EQ(stream_of_body(), here) << "nobody asked for it";
  const SideStream outer;
  const auto beside = stream_of_body();
  EXPECT_NE(beside, here);
  {
    const SideStream inner;
    EXPECT_EQ(stream_of_body(), beside) << "always the same one";
  }
  EXPECT_EQ(stream_of_body(), beside);
  EXPECT_EQ(current_stream(0), here);
  std::thread([&] { EXPECT_EQ(stream_of_body(), here) << "another thread's"; }).join();
  SideStream::run({at::ones({3})}, [&] { EXPECT_EQ(current_stream(0), here) << "the CPU has none"; });
}

TEST_F(SideStreamDeviceTest, ErrorsOfTheWorkReachTheCaller) {
  const SideStream aside;
  EXPECT_THROW(SideStream::run({x}, [] { TORCH_CHECK_VALUE(false, "wrong"); }), c10::ValueError);
}

}  // namespace
}  // namespace mezzo::simulated
