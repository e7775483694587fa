#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/cuda/namespace.h"

namespace mezzo::encoder::MEZZO_CUDA {

/// Sum of the rows' cross entropies, and what backward needs: of a row x, its largest element and
/// log(sum(exp(x - largest))). Their sum, log(sum(exp(x))), would lose the second where logits are large.
struct CrossEntropy {
  at::Tensor loss;              ///< 0-dim float32
  at::Tensor largest, log_sum;  ///< [B] float32
};

/// cross_entropy_loss(logits.to(float32), targets, reduction="sum"), without autograd, on a CUDA device's current
/// stream. The same inputs give the same bits; nothing waits for the device. A target that is no class ends in the
/// error of a device-side assertion.
/// @param logits  [B, C] float32, bfloat16 or float16, contiguous
/// @param targets  [B] int64, contiguous: in [0, C), or `ignored`, whose rows count nothing
/// @see torch.nn.functional.cross_entropy (Python), whose `ignore_index` is `ignored`.
CrossEntropy cross_entropy(const at::Tensor& logits, const at::Tensor& targets, int64_t ignored = -100);

/// @param grad  of the loss: 0-dim float32, on the device
/// @return [B, C], dtype of `logits`; 0 in ignored rows
at::Tensor cross_entropy_backward(const at::Tensor& grad,
                                  const CrossEntropy& forward,
                                  const at::Tensor& logits,
                                  const at::Tensor& targets,
                                  int64_t ignored = -100);

}  // namespace mezzo::encoder::MEZZO_CUDA
