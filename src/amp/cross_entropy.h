#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <cstdint>

namespace mezzo {

/// The operator mezzo::cross_entropy: cross entropy of logits, of whatever precision, with one label a row, in float32.
/// If a kind of device has CrossEntropyKernels, it is one node of the graph, differentiable twice. Elsewhere it is
/// at::cross_entropy_loss of `logits` in float32 (float64 stays float64), which autocast treats as usual. So it is also
/// if an op policy or a FiniteTracer wants to see single operations.
/// @param logits  [N, C] floating; at::cross_entropy_loss's other shapes, too
/// @param target  [N] int64 in [0, C), or `ignore_index`, whose rows count nothing
/// @param reduction  at::Reduction
/// @return 0-dim, or [N] for at::Reduction::None
at::Tensor cross_entropy_of_labels(const at::Tensor& logits,
                                   const at::Tensor& target,
                                   int64_t reduction,
                                   int64_t ignore_index = -100);

/// The loss, and what backward needs: of a row x, its largest element and log(sum(exp(x -
/// largest))). Their sum, log(sum(exp(x))), would lose the second where logits are large.
struct CrossEntropy {
  at::Tensor loss;              ///< float32: [N] for at::Reduction::None, else 0-dim
  at::Tensor largest, log_sum;  ///< [N] float32
  at::Tensor count;             ///< 0-dim float32: of rows that count; for at::Reduction::Mean alone
};

struct CrossEntropyOf {
  at::Tensor logits;  ///< [N, C] float32, bfloat16 or float16, contiguous
  at::Tensor target;  ///< [N] int64, contiguous; one that is not a class is an error of the device
  int64_t reduction, ignore_index;
};

/// A device type's kernels in place of the specification, without autograd. The same inputs give the same bits; nothing
/// waits for the device.
struct CrossEntropyKernels {
  CrossEntropy (*forward)(const CrossEntropyOf& of);

  /// @param grad  of the loss, float32, on the device
  /// @return [N, C], dtype of the logits; 0 in ignored rows
  at::Tensor (*backward)(const CrossEntropyOf& of, const CrossEntropy& forward, const at::Tensor& grad);
};

/// Gives a kind of device its own, which live as long as the process; nullptr takes them back.
void set_cross_entropy_kernels(c10::DeviceType device_type, const CrossEntropyKernels* kernels);

}  // namespace mezzo
