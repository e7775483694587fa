#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/optimizer_kernels.h"
#include "kernels/scaling_kernels.h"

namespace mezzo {

using kernels::ScaleOfGradients;

/// Where gradients will be once they are unscaled, which decides on whether they are finite then.
enum class Unscaled { kInPlace, kInFloat32 };

/// Reads and changes a set of gradients, on any devices and of any floating dtypes. Each kernel takes the gradients of
/// one device together. `found_inf` is 1 or 0, float32, 0-dim; it and norms are undefined without gradients. Never
/// syncs.
class GradientPass {
 public:
  /// Takes the gradient of `owner` in. `master`: a float32 tensor that is to own the unscaled
  /// gradient, since half precision has no numbers for the small ones; undefined: `owner` keeps it.
  void add(at::Tensor owner, at::Tensor master = {});
  bool empty() const { return gradients_.empty(); }

  /// Whether inf or NaN is in a gradient, or in what unscaling makes of it; on the device of the
  /// scale. Reads each gradient once and changes none.
  at::Tensor check(const ScaleOfGradients& scale, Unscaled unscaled) const;

  /// Divides every gradient, and returns the `found_inf` of `check`.
  at::Tensor unscale(const ScaleOfGradients& scale);

  /// The total L2 norm of the gradients divided by `scale`, if defined, `found_inf`, and the factor that clips them to
  /// `max_norm`, in one reading. They are on the device of `scale`, or else of the first gradient. Dense gradients
  /// alone.
  kernels::GradientSummary measure(const at::Tensor& scale, double max_norm) const;

 private:
  struct Gradient {
    at::Tensor owner, master;
    at::Tensor values() const;
  };
  std::vector<Gradient> gradients_;
};

}  // namespace mezzo
