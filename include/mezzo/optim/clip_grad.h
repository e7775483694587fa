#pragma once

#include <ATen/core/Tensor.h>

namespace mezzo {

/// Scales the gradients of `parameters` in place so that their total norm is at
/// most `max_norm`, and returns the norm they had.
///
/// Never waits for the device, unless the first gradient is on the CPU and others
/// are not: the norm is a 0-dim tensor on the device of the first gradient
/// (float32, or float64 where gradients are), not a number.
/// Norms of half gradients are accumulated and returned in float32. Under a
/// GradScaler, call `scaler.unscale_(optimizer)` first, so that true gradients
/// are measured. Inf or NaN in a gradient gives a norm of inf or NaN and makes
/// the gradients NaN; the scaler then skips the step, having found it before.
///
/// Parameters without a gradient are passed over; with no gradient at all the
/// result is 0. Thread-safe where the gradients are not shared.
///
/// @param max_norm  at least 0; infinity measures and changes nothing.
/// @param norm_type  p of the p-norm, above 0; infinity for the largest magnitude.
/// @throws c10::ValueError  for a negative or NaN `max_norm`, a `norm_type` that is
///     not above 0, or a sparse gradient; nothing has changed then.
/// @see torch.nn.utils.clip_grad_norm_ (Python). LibTorch's own function of this
///     name returns a `double`, for which it waits for the device. Differs: for
///     half gradients PyTorch rounds each norm to half, which can reach inf.
at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm, double norm_type = 2.0);

/// Clamps every element of the gradients of `parameters` to [-clip_value,
/// clip_value], in place; NaN stays NaN. Never waits for the device. Under a
/// GradScaler, call `scaler.unscale_(optimizer)` first. Parameters without a
/// gradient are passed over. Thread-safe where the gradients are not shared.
///
/// @throws c10::ValueError  for a negative or NaN `clip_value`, or a sparse
///     gradient; nothing has changed then.
/// @see torch.nn.utils.clip_grad_value_ (Python).
void clip_grad_value_(at::TensorList parameters, double clip_value);

}  // namespace mezzo
