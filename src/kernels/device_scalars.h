#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/maximum.h>
#include <c10/util/Exception.h>

#include <optional>

#include "memory/device_copy.h"

/// 0-dim tensors that decide on a step on their device, so that nothing waits for them.
namespace mezzo {

/// The dtype in which a device accumulates: float64, or float32 on MPS and XPU. MPS has no float64, nor have some XPUs.
inline at::ScalarType accumulation_dtype(c10::Device device) {
  return device.is_mps() || device.is_xpu() ? at::kFloat : at::kDouble;
}

/// @throws c10::ValueError  if `device` lacks float64, the dtype of a learning rate that is a tensor
inline void check_lr_device(c10::Device device) {
  TORCH_CHECK_VALUE(accumulation_dtype(device) == at::kDouble, "mezzo: a learning rate cannot be a tensor on ", device,
                    ", which may have no float64; set it to a number");
}

/// 1 / scale, rounded once: float32 division is inexact under some compilers' fast modes.
inline at::Tensor inverse_of(const at::Tensor& scale) {
  return scale.to(accumulation_dtype(scale.device())).reciprocal().to(at::kFloat);
}

/// What gradients of this total norm are multiplied by, so that it is `max_norm` at most.
inline at::Tensor clip_factor(const at::Tensor& total_norm, double max_norm) {
  const auto wanted = (total_norm + 1e-6).reciprocal() * max_norm;  // as Python divides a number by a tensor
  return at::clamp(wanted, /*min=*/std::nullopt, /*max=*/1.0);
}

/// The larger of two `found_inf`s, on the device of the first that is there; undefined if neither is.
inline at::Tensor either(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || a.is_same(b)) {
    return a.defined() ? a : b;
  }
  return at::maximum(a, copy_to(b, a.device()));
}

}  // namespace mezzo
