#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

namespace mezzo {

/// The norm of all elements of `tensors` together, such as gradients. Thread-safe. Waits for the
/// device only before it throws, or if the first tensor is on the CPU and others are not.
/// @param norm_type  p of the p-norm, above 0; infinity for the largest magnitude
/// @param error_if_nonfinite  true: waits for the device, and throws if the norm is inf or NaN
/// @return 0-dim, on the device of the first tensor. float32, also for half tensors; float64 if a
///     tensor is float64. 0 without tensors.
/// @throws c10::ValueError  for a `norm_type` that is not above 0, or a sparse tensor
/// @throws c10::Error  for a norm that is not finite, with `error_if_nonfinite`
/// @see torch.nn.utils.get_total_norm (Python). Differs: PyTorch rounds norms of half tensors to
///     half.
at::Tensor get_total_norm(at::TensorList tensors, double norm_type = 2.0, bool error_if_nonfinite = false);

/// Scales the gradients of `parameters` in place so that their total norm is at most `max_norm`.
/// Under a GradScaler, call `scaler.unscale_(optimizer)` first. Ignores parameters without a
/// gradient. Thread-safe if the gradients are not shared. Waits for the device as get_total_norm.
///
/// Inf or NaN in a gradient gives a norm of inf or NaN, and turns each gradient to 0 or NaN. A
/// scaler has found them before, and skips the step.
/// @param max_norm  at least 0; infinity measures and changes nothing
/// @param norm_type  as of get_total_norm
/// @param error_if_nonfinite  as of get_total_norm; no gradient has changed when it throws
/// @return the total norm before clipping
/// @throws c10::ValueError  for a negative or NaN `max_norm`, a `norm_type` that is not above 0, or
///     a sparse gradient; nothing has changed then
/// @throws c10::Error  for a norm that is not finite, with `error_if_nonfinite`
/// @see torch.nn.utils.clip_grad_norm_ (Python). LibTorch's function of this name returns a
///     `double`, and waits for the device.
at::Tensor clip_grad_norm_(at::TensorList parameters,
                           double max_norm,
                           double norm_type = 2.0,
                           bool error_if_nonfinite = false);

/// Clamps every element of the gradients of `parameters` to [-clip_value, clip_value], in place.
/// NaN stays NaN. Under a GradScaler, call `scaler.unscale_(optimizer)` first. Ignores parameters
/// without a gradient. Thread-safe if the gradients are not shared. Never waits for the device.
/// @throws c10::ValueError  for a negative or NaN `clip_value`, or a sparse gradient; nothing has
///     changed then
/// @see torch.nn.utils.clip_grad_value_ (Python)
void clip_grad_value_(at::TensorList parameters, double clip_value);

}  // namespace mezzo
