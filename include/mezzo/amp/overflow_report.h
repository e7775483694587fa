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
  std::string parameter;              ///< its name, or "parameter 1 of group 0"
  size_t index = 0;                   ///< of the parameter, over all groups
  std::vector<int64_t> shape;         ///< of the gradient, also if it is sparse
  at::ScalarType dtype = at::kFloat;  ///< of the gradient
  int64_t num_values = 0;             ///< checked; of a sparse gradient, the stored ones
  int64_t num_inf = 0;                ///< +inf and -inf
  int64_t num_nan = 0;                ///< NaN
  double largest_finite = 0;          ///< the largest magnitude among the finite values; 0 if there are none
};

/// The gradients of an optimizer that hold inf or NaN.
struct OverflowReport {
  std::string optimizer;                       ///< its class
  int64_t num_gradients = 0;                   ///< checked; parameters without gradient are not counted
  std::vector<OverflowedGradient> overflowed;  ///< in the optimizer's order

  /// Whether no gradient overflowed.
  bool empty() const { return overflowed.empty(); }

  /// Whether any gradient holds NaN. A lower scale may remove inf, but NaN only if it came from two
  /// infs.
  bool has_nan() const;

  /// One line: how many gradients overflowed, and the first `most` of them.
  std::string summary(size_t most = 4) const;

  /// A table with a heading, one line for each of the first `most` gradients. Ends with a line
  /// feed.
  std::string to_string(size_t most = std::numeric_limits<size_t>::max()) const;
};

/// The gradients of `optimizer` that hold inf or NaN. Called right after a skipped step and before
/// `zero_grad`, it shows the cause of the skip.
///
/// Values are reported unchanged: true gradients after `unscale_` or a step of a LibTorch
/// optimizer, scaled ones after a step that an optimizer of mezzo skipped. Call this before
/// clipping: clipping turns gradients to 0 or NaN if their norm is inf or NaN.
///
/// Sparse gradients are coalesced in a copy, because entries of equal index may overflow when
/// summed. Waits for the device once, and a second time if something overflowed.
OverflowReport overflow_report(torch::optim::Optimizer& optimizer);

}  // namespace mezzo
