#include "simulated/device_test.h"

namespace mezzo::simulated {

void synchronize() {
  for (Queue* queue : Queue::all()) {
    host_sync(*queue, "all");
  }
}

void move_to(const torch::nn::Module& module, c10::Device device) {
  auto tensors = module.parameters();
  const auto buffers = module.buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  for (const at::Tensor& tensor : tensors) {
    tensor.unsafeGetTensorImpl()->shallow_copy_from(tensor.detach().to(device).getIntrusivePtr());
  }
}

void DeviceTest::SetUp() {
  set_pace(Pace::kLate);
  set_current_device(0);
  for (c10::DeviceIndex i = 0; i < kDevices; ++i) {
    set_current_stream(default_stream(i));
  }
}

void DeviceTest::TearDown() {
  EXPECT_NO_THROW(synchronize());
  const auto faults = all.faults();
  EXPECT_EQ(faults.size(), expected_faults_) << testing::PrintToString(faults);
}

void DeviceTest::expect_fault(const std::string& part) {
  ++expected_faults_;
  try {
    synchronize();
    ADD_FAILURE() << "no fault";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr(part));
    synchronize();
  }
}

}  // namespace mezzo::simulated
