#include "memory/device_copy.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/maximum.h>

namespace mezzo {

namespace {

/// Whether copies to this device read pinned memory by themselves, while the CPU goes on. From
/// other memory CUDA may copy only once the stream has done all it has to.
bool reads_pinned_memory(c10::Device device) { return at::getAccelerator() == device.type() && !device.is_mps(); }

}  // namespace

at::Tensor copy_to(const at::Tensor& tensor, c10::Device device) {
  return tensor.defined() ? copy_to(tensor, device, tensor.scalar_type()) : tensor;
}

at::Tensor copy_to(const at::Tensor& tensor, c10::Device device, c10::ScalarType dtype) {
  const bool pins = tensor.is_cpu() && reads_pinned_memory(device);
  return (pins ? tensor.pin_memory() : tensor).to(device, dtype, /*non_blocking=*/!device.is_cpu());
}

at::Tensor& DeviceCopies::on(c10::Device device) {
  for (at::Tensor& copy : copies_) {
    if (copy.device() == device) {
      return copy;
    }
  }
  return copies_.emplace_back(copy_to(copies_.front(), device));
}

at::Tensor DeviceCopies::maximum() const {
  at::Tensor largest = copies_.front();
  for (size_t i = 1; i < copies_.size(); ++i) {
    largest = at::maximum(largest, copy_to(copies_[i], largest.device()));
  }
  return largest;
}

}  // namespace mezzo
