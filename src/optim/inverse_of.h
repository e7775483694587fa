#pragma once

#include <ATen/core/Tensor.h>

namespace mezzo {

/// 1 / scale, rounded once: float32 division is inexact under some compilers' fast modes.
inline at::Tensor inverse_of(const at::Tensor& scale) {
  return scale.device().is_mps() ? scale.reciprocal() : scale.to(at::kDouble).reciprocal().to(at::kFloat);
}

}  // namespace mezzo
