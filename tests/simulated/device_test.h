#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include "simulated/report.h"
#include "simulated/streams.h"

/// An accelerator for LibTorch that needs no hardware, under the name "simulated". It has two
/// devices, on which a test sees errors that a GPU would hide. Each part is a file:
/// - streams.h: work is done later, by threads of the streams; at Pace::kLate only
///   when somebody waits for it;
/// - memory.h: only kernels may touch a device's memory, and only memory among their arguments;
/// - fallback.cpp, launch.h: LibTorch's operators, by their CPU kernels, with the sizes of
///   their results known at once;
/// - layers.cpp: convolutions of images, batch norms and LSTM cells;
/// - copy.cpp: data that are read too early are NaN;
/// - ordering.h: memory that streams use without an event between them, or that is
///   freed too early, is a fault;
/// - report.h: faults, and how often the host waited;
/// - graph.h: recorded kernels, and the calls that a recording forbids;
/// - collectives.h: ranks that are threads, each with a device. LibTorch's own modules cannot be
/// moved to such a device, but by move_to() below, nor cloned there.
namespace mezzo::simulated {

/// Waits for all streams of all devices, and throws what went wrong on them.
void synchronize();

/// `module.to(device)`, which LibTorch refuses for devices of outside: tensors that point
/// to the parameters follow.
void move_to(const torch::nn::Module& module, c10::Device device);

/// A test on the simulated devices. Any fault fails it, and streams work as late as they can.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  /// Faults that the test has asked for do not fail it.
  void expect_fault(const std::string& part);

  const c10::Device device{kType, 0}, other_device{kType, 1};
  const Watch all;

 private:
  size_t expected_faults_ = 0;
};

}  // namespace mezzo::simulated
