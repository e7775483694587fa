#include "memory/device_copy.h"

#include <ATen/ops/maximum.h>

namespace mezzo {

at::Tensor copy_to(const at::Tensor& tensor, c10::Device device) {
  return tensor.defined() ? copy_to(tensor, device, tensor.scalar_type()) : tensor;
}

at::Tensor copy_to(const at::Tensor& tensor, c10::Device device, c10::ScalarType dtype) {
  return tensor.to(device, dtype, /*non_blocking=*/!device.is_cpu());
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
