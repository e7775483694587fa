#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

namespace mezzo {

/// Scales the gradients of `parameters` in place so that their total norm is at most `max_norm`.
/// Under a GradScaler, call `scaler.unscale_(optimizer)` first. Parameters without a gradient are
/// passed over. Thread-safe where the gradients are not shared. Never waits for the device, unless
/// the first gradient is on the CPU and others are not.
///
/// Inf or NaN in a gradient gives a norm of inf or NaN, and turns each gradient to 0 or NaN; the
/// scaler then skips the step, having found it before.
/// @param max_norm  at least 0; infinity measures and changes nothing
/// @param norm_type  p of the p-norm, above 0; infinity for the largest magnitude
/// @return the norm before clipping: 0-dim, on the device of the first gradient, float32 (also of
///     half gradients), or float64 where gradients are; 0 with no gradient at all
/// @throws c10::ValueError  for a negative or NaN `max_norm`, a `norm_type` that is not above 0, or
///     a sparse gradient; nothing has changed then
/// @see torch.nn.utils.clip_grad_norm_ (Python). Differs: PyTorch rounds the norms of half
///     gradients to half, which can reach inf. LibTorch's function of this name returns a `double`,
///     and waits for the device.
at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm, double norm_type = 2.0);

/// Clamps every element of the gradients of `parameters` to [-clip_value, clip_value], in place;
/// NaN stays NaN. Under a GradScaler, call `scaler.unscale_(optimizer)` first. Parameters without a
/// gradient are passed over. Thread-safe where the gradients are not shared. Never waits for the
/// device.
/// @throws c10::ValueError  for a negative or NaN `clip_value`, or a sparse gradient; nothing has
///     changed then
/// @see torch.nn.utils.clip_grad_value_ (Python)
void clip_grad_value_(at::TensorList parameters, double clip_value);

}  // namespace mezzo
