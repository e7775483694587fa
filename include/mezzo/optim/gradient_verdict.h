#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <functional>

namespace mezzo {

/// What is known of the gradients of a step before it, in 0-dim tensors.
struct GradientVerdict {
  bool is_measured = false;   ///< whether the gradients were read for it
  at::Tensor norm;            ///< their total L2 norm, float32, or float64 if a gradient is; undefined: not measured,
                              ///< or there is no gradient
  at::Tensor sum_of_squares;  ///< float64; there with the norm
  at::Tensor found_inf;       ///< 1: the step is to change nothing, else 0; float32; undefined: nothing was checked
};

/// Makes what one optimizer found what several found together, whose
/// parameters are parts of one model.
using VerdictHook = std::function<GradientVerdict(const GradientVerdict& own)>;

}  // namespace mezzo
