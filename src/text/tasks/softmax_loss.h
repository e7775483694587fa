#pragma once

#include <ATen/core/Tensor.h>

#include "mezzo/text/tasks/task.h"

namespace mezzo::text {

/// The sum over the rows of cross entropy, or what `options` make of it, in float32.
/// @param outputs  [N, labels]
/// @param targets  [N] int64; rows of -100 count nothing.
/// @param weights  [labels] float32; undefined where all weigh the same.
at::Tensor softmax_loss(const at::Tensor& outputs,
                        const at::Tensor& targets,
                        const LossOptions& options,
                        const at::Tensor& weights);

}  // namespace mezzo::text
