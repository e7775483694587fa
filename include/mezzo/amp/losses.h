#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/options/loss.h>

/// Losses that stay finite when their half-precision or hand-written forms do not. Half inputs are
/// computed in float32 and float64 inputs in float64, always outside autocast. Never syncs.
/// Thread-safe; differentiable twice.
///
/// Gradients flow back in the input's dtype. float16 ends at 65504, so keep probabilities in
/// float32 if they may reach 0 or 1.
namespace mezzo {

/// Binary cross entropy of probabilities, −w (t log p + (1 − t) log(1 − p)), with both logarithms
/// clamped at −100. So no loss is above 100 w, and no gradient above 1e12 w, even if p = 0, t = 1.
/// @param probabilities  In [0, 1], of any shape and floating dtype. Another value, including NaN,
///     is an error on the CPU and, as in PyTorch, a device-side assert on CUDA.
/// @param target  of the same shape; any dtype, usually 0 and 1
/// @param options  `weight`, which must broadcast to the shape, and `reduction` (kMean, kSum,
///     kNone)
/// @throws c10::ValueError  if the shapes differ, or `probabilities` is not floating
/// @see torch.nn.BCELoss (Python): equal to its float32 result. Differs: allowed under autocast on
///     CUDA; `target` may be of another dtype.
at::Tensor binary_cross_entropy(const at::Tensor& probabilities,
                                const at::Tensor& target,
                                torch::nn::functional::BinaryCrossEntropyFuncOptions options = {});

/// log(max(x, floor)), elementwise. The gradient is 1 / x above floor and exactly 0 below. At floor
/// it is LibTorch's clamp_min gradient: 1 / floor up to LibTorch 2.14, 0 from 2.15 on. A clamp of
/// log(x) itself would have the gradient NaN at 0. NaN stays NaN, so that its source can be found.
/// @param x  of any shape and floating dtype; the result is float32, or float64 for float64
/// @param floor  The least argument of the logarithm, which bounds the gradient by 1 / floor. At
///     least the smallest normal float32, 1.2e-38.
/// @throws c10::ValueError  for a `floor` out of range, or an `x` that is not floating
at::Tensor clamped_log(const at::Tensor& x, double floor = 1e-12);

/// Cross entropy of logits of any precision, in float32.
/// @param logits  `[N, C]`, `[C]` or `[N, C, ...]`, floating
/// @param target  labels `[N]`, `[]` or `[N, ...]` (int64), or probabilities of the shape of
///     `logits`
/// @param options  as LibTorch's: `weight` `[C]`, `ignore_index`, `reduction`, `label_smoothing`
/// @throws c10::ValueError  for `logits` that are not floating; LibTorch's own errors for shapes
/// @see torch.nn.functional.cross_entropy (Python): equal to its result for `logits.float()`
at::Tensor cross_entropy(const at::Tensor& logits,
                         const at::Tensor& target,
                         torch::nn::functional::CrossEntropyFuncOptions options = {});

}  // namespace mezzo
