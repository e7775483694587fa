#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "kernels/cuda/arguments.h"
#include "kernels/dtypes.h"

/// Tensors as the kernels take them.
namespace mezzo::kernels::MEZZO_CUDA {

/// Elements of a contiguous tensor, to read or to write; none of an undefined one.
inline Span span_of(const at::Tensor& tensor) {
  return tensor.defined() ? Span{const_cast<void*>(tensor.const_data_ptr()), element_of(tensor.scalar_type())} : Span{};
}

/// While it lives, the device of a tensor is the current one; kernels go to its current stream.
class OnDeviceOf {
 public:
  explicit OnDeviceOf(const at::Tensor& tensor) : guard_(tensor.device()) {
    if (!tensor.is_cpu()) {
      stream = c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()).native_handle();
    }
  }
  Stream stream = nullptr;

 private:
  c10::DeviceGuard guard_;
};

}  // namespace mezzo::kernels::MEZZO_CUDA
