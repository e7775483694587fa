#include "memory/device_copy.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

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

void copy_into(const at::Tensor& buffer, const at::Tensor& tensor) {
  const bool pins = tensor.is_cpu() && reads_pinned_memory(buffer.device());
  buffer.copy_(pins ? tensor.pin_memory() : tensor, /*non_blocking=*/true);
}

HostCopy::HostCopy(const at::Tensor& tensor) : copy_(tensor) {
  const auto device = tensor.device();
  if (device.is_cpu()) {
    return;
  }
  const bool pins = reads_pinned_memory(device);
  copy_ = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(pins));
  copy_.copy_(tensor, /*non_blocking=*/pins);
  const c10::DeviceGuard guard(device);
  arrived_.emplace(device.type());
  arrived_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

const at::Tensor& HostCopy::wait() {
  if (arrived_) {
    arrived_->synchronize();
    arrived_.reset();
  }
  return copy_;
}

}  // namespace mezzo
