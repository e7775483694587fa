#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace mezzo {

/// A gradient that holds inf or NaN.
struct OverflowedGradient {
  std::string parameter;       ///< its name, or "parameter 1 of group 0"
  size_t index = 0;            ///< of the parameter, over all groups
  std::vector<int64_t> shape;  ///< of the gradient, also where it is sparse
  at::ScalarType dtype = at::kFloat;
  int64_t num_values = 0;  ///< checked; of a sparse gradient, the stored ones
  int64_t num_inf = 0;
  int64_t num_nan = 0;
  double largest_finite = 0;  ///< the largest magnitude among the finite values; 0 if there are none
};

/// Which gradients of an optimizer hold inf or NaN.
struct OverflowReport {
  std::string optimizer;                       ///< its class
  int64_t num_gradients = 0;                   ///< looked at: parameters without gradient are not counted
  std::vector<OverflowedGradient> overflowed;  ///< in the optimizer's order

  bool empty() const { return overflowed.empty(); }

  /// NaN is not mended by a lower scale, as inf may be, unless it came of two infs that met.
  bool has_nan() const;

  /// One line: how many gradients overflowed, and the first `most` of them.
  std::string summary(size_t most = 4) const;

  /// A table, one line for each of the first `most` gradients, under a
  /// heading; ends with a line feed.
  std::string to_string(size_t most = std::numeric_limits<size_t>::max()) const;
};

/// Which gradients of `optimizer` hold inf or NaN: what a step was skipped for, when called right
/// after it and before `zero_grad`.
///
/// Values are reported as they stand: true gradients after `unscale_` or a step of one of LibTorch's
/// optimizers, scaled ones after a step that one of mezzo's skipped. Call this before clipping,
/// which turns gradients to 0 or NaN if their norm is inf or NaN.
///
/// Sparse gradients are coalesced in a copy, since entries of equal index may overflow once summed.
/// Waits for the device once, and once more where something overflowed.
OverflowReport overflow_report(torch::optim::Optimizer& optimizer);

}  // namespace mezzo
