#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <functional>

namespace mezzo::detail {

/// Statistics of the gradients, known before the step, in 0-dim tensors.
struct GradientStatistics {
  bool is_measured = false;   ///< whether the gradients were read
  at::Tensor norm;            ///< total L2 norm, float32, or float64 if a gradient is; undefined: not measured,
                              ///< or no gradient exists
  at::Tensor sum_of_squares;  ///< float64; defined if the norm is
  at::Tensor found_inf;       ///< 1: the step is to change nothing, else 0; float32; undefined: nothing was checked
};

/// Combines the statistics of one optimizer with the statistics of the optimizers that train other
/// parts of the same model.
using GradientStatisticsHook = std::function<GradientStatistics(const GradientStatistics& own)>;

}  // namespace mezzo::detail
