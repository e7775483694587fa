#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/gradient_groups.h"
#include "mezzo/optim/amp_optimizer.h"

namespace mezzo {

/// The loss scale as a pass over gradients takes it.
struct ScaleOfGradients {
  at::Tensor value;  ///< float32, 0-dim
  /// Unscaling may make a finite gradient inf then, so that its results are looked at, too.
  bool may_be_below_one;
  /// Such results, and a scale without finite reciprocal, go unnoticed, as in torch.amp.GradScaler.
  bool reproduce_pytorch;
};

/// All gradients of an optimizer: finds inf and NaN, in them and in what unscaling makes of them, and unscales them.
/// Verdicts are 1 or 0, float32, 0-dim, on the device of the scale; undefined where there is no gradient. Never syncs.
class GradientPass {
 public:
  /// What becomes of the gradients after the verdict.
  enum class Use {
    kUnscale,     ///< `unscale` divides them
    kStepScaled,  ///< the optimizer divides them, in float32
  };

  /// @throws c10::ValueError  for a gradient that cannot be used so, naming the parameter; nothing has changed then.
  GradientPass(AmpOptimizer& optimizer, Use use);

  /// The verdict alone. Changes no gradient.
  at::Tensor check(const ScaleOfGradients& scale) const;

  /// Divides every gradient, and returns the same verdict. That of a parameter with a float32 master becomes the
  /// master's gradient, since half precision has no numbers for the small ones.
  at::Tensor unscale(const ScaleOfGradients& scale);

 private:
  struct Gradient {
    at::Tensor owner;
    at::Tensor master;  // to own the unscaled gradient; undefined: `owner` keeps it
  };

  Use use_;
  std::vector<Gradient> gradients_;
};

}  // namespace mezzo
