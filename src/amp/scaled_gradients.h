#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>

#include "mezzo/optim/amp_optimizer.h"
#include "scaling/gradient_pass.h"

namespace mezzo {

/// The gradients of an optimizer, and the verdict of this process on them or, with `agree`, of all.
/// Verdicts are 1 or 0, float32, 0-dim, on the device of the scale; undefined where no process has
/// a gradient. Syncs only where `agree` does, and where another process alone has gradients.
class ScaledGradients {
 public:
  using Agree = std::function<void(at::Tensor& flags)>;  ///< GradScalerOptions' `agree`; may be empty

  /// `optimizer` and `agree` must outlive it.
  ScaledGradients(AmpOptimizer& optimizer, ScaleOfGradients scale, const Agree& agree)
      : optimizer_(optimizer), scale_(std::move(scale)), agree_(agree) {}

  /// Divides every gradient. All agree before any gradient changes: where that throws, none has.
  /// @throws c10::ValueError  for a gradient that cannot be divided, naming the parameter;
  ///   nothing has changed then.
  at::Tensor unscale();

  /// Before an optimizer divides them that applies the scale itself. One that measures them
  /// anyway does both at once.
  at::Tensor check();

  /// The verdict of `unscale`, and with `agree` that on what was done to gradients since, where the
  /// optimizer's update would find it. Alone, one hears of it from the update.
  at::Tensor check_again(const at::Tensor& found_inf);

 private:
  at::Tensor agreed(const at::Tensor& found_inf) const;

  AmpOptimizer& optimizer_;
  ScaleOfGradients scale_;
  const Agree& agree_;
};

}  // namespace mezzo
