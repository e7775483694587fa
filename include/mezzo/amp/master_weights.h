#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <vector>

#include "mezzo/optim/named_parameter.h"

namespace mezzo {

/// Float32 master copies of a model kept in half precision: the classic recipe
/// (Micikevicius et al. 2017, "Mixed precision training", section 3.1).
///
/// Construct before the first backward; give `masters()` to the optimizer; then
/// per step: backward, `accumulate_gradients()` (once per micro-batch),
/// optimizer step, `copy_to_model()`. Sums of gradients are kept in float32.
/// Not thread-safe; never syncs the device.
class MasterWeights {
 public:
  /// Casts every parameter of `model` in place to `dtype`; the masters keep the
  /// float32 values, names and devices.
  /// @throws c10::ValueError  if `dtype` is not kHalf or kBFloat16, or a
  ///     parameter is not float32; nothing has changed then.
  MasterWeights(std::vector<NamedParameter> model, c10::ScalarType dtype);

  const std::vector<NamedParameter>& masters() const { return masters_; }

  /// Adds the model's gradients to the masters' in float32 and drops the model's.
  void accumulate_gradients();

  /// Rounds the masters into the model.
  void copy_to_model();

 private:
  std::vector<NamedParameter> model_;
  std::vector<NamedParameter> masters_;
};

}  // namespace mezzo
