#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace mezzo {

/// `tensor` on `device`: itself if it lies there already, undefined if it is undefined. Does not wait for a copy to an
/// accelerator. A copy from the CPU uses pinned memory, so that nothing waits. Later work of its stream follows it, and
/// the CPU may change the tensor meanwhile, unless the tensor is pinned. A copy to the CPU is waited for, since the CPU
/// would read memory that the device has not written yet. Nothing else in mezzo copies without waiting.
at::Tensor copy_to(const at::Tensor& tensor, c10::Device device);

/// The same, as `dtype`.
at::Tensor copy_to(const at::Tensor& tensor, c10::Device device, c10::ScalarType dtype);

/// `tensor` into `buffer`, of the same shape on an accelerator, in the same way.
void copy_into(const at::Tensor& buffer, const at::Tensor& tensor);

/// A tensor on its way to the host, which need not wait for it: to be read some time later. The
/// stream may change the tensor meanwhile, and no more memory of the device is used. Of a tensor
/// on the CPU, the tensor.
class HostCopy {
 public:
  explicit HostCopy(const at::Tensor& tensor);

  /// Whether `wait` would not wait.
  bool has_arrived() const { return !arrived_ || arrived_->query(); }
  /// Waits for the device's work before the copy, and for no more.
  const at::Tensor& wait();

 private:
  at::Tensor copy_;
  std::optional<c10::Event> arrived_;
};

}  // namespace mezzo
