#pragma once

#include <ATen/ops/maximum.h>

#include "memory/device_copy.h"

/// 0-dim tensors that decide on a step where they live, so that nothing waits for them.
namespace mezzo {

/// 1 / scale, rounded once: float32 division is inexact under some compilers' fast modes.
inline at::Tensor inverse_of(const at::Tensor& scale) {
  return scale.device().is_mps() ? scale.reciprocal() : scale.to(at::kDouble).reciprocal().to(at::kFloat);
}

/// The larger of two verdicts, on the device of the first that is there; undefined if neither is.
inline at::Tensor either(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) {
    return a.defined() ? a : b;
  }
  return at::maximum(a, copy_to(b, a.device()));
}

}  // namespace mezzo
