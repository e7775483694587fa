#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <optional>

/// Of operators' arguments, which anybody may give by torch.ops.mezzo: a kernel would read or write past their end.
namespace mezzo::kernels {

inline bool is_number(const at::Tensor& tensor, at::ScalarType dtype, const c10::Device& device) {
  return tensor.numel() == 1 && tensor.scalar_type() == dtype && tensor.device() == device;
}

/// @throws c10::ValueError  unless all of `tensors` are on `device`
inline void check_same_device(at::TensorList tensors, const c10::Device& device) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.device() == device, "mezzo: the tensors of one call must all be on one device, got ",
                      device, " and ", tensor.device());
  }
}

/// @throws c10::ValueError  unless a loss scale is a number of `device`
inline void check_scale(const at::Tensor& scale, const c10::Device& device) {
  TORCH_CHECK_VALUE(is_number(scale, at::kFloat, device), "mezzo: the loss scale must be one float32 number on ",
                    device, ", got ", scale.scalar_type(), " ", scale.sizes(), " on ", scale.device());
}

}  // namespace mezzo::kernels
