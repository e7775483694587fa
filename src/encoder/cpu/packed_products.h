#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <utility>
#include <vector>

namespace mezzo::encoder::cpu {

/// output = [output +] the sum of the products of its terms.
struct ProductSum {
  at::Tensor output;                                     ///< [M, N]; of the terms' dtype, or float32
  std::vector<std::pair<at::Tensor, at::Tensor>> terms;  ///< [M, K] and [K, N]; one or more, of one dtype
  bool adds;
  double operations() const;
};

/// Whether `compute_packed` takes it and LibTorch's products are the slower ones.
bool can_be_packed(const ProductSum& sum);

/// With matrix products of our own: what stands on the right is rearranged once for all threads,
/// which LibTorch's do for each, and threads end together, as tasks get smaller towards the end.
/// Results do not depend on the number of threads; a sum is rounded once.
void compute_packed(std::span<const ProductSum> sums);

}  // namespace mezzo::encoder::cpu
