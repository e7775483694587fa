#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include "simulated/report.h"
#include "simulated/streams.h"

namespace mezzo::simulated {

/// Waits for all streams of all devices, and throws what went wrong on them.
void synchronize();

/// `module.to(device)`, which LibTorch refuses for devices of outside: tensors that point to the parameters follow.
void move_to(const torch::nn::Module& module, c10::Device device);

/// A test of what runs on the simulated devices, where nothing may go wrong, and streams work as late as they can.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  /// Faults that the test has asked for are no faults of its.
  void expect_fault(const std::string& part);

  const c10::Device device{kType, 0}, other_device{kType, 1};
  const Watch all;

 private:
  size_t expected_faults_ = 0;
};

}  // namespace mezzo::simulated
