#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace mezzo::encoder::cpu {

/// output = [output +] the sum of the products of its terms.
struct ProductSum {
  at::Tensor output;                                     ///< [M, N]; of the terms' dtype, or float32
  std::vector<std::pair<at::Tensor, at::Tensor>> terms;  ///< [M, K] and [K, N]; one or more, of one dtype
  bool adds;
  double operations() const {
    double depth = 0;
    for (const auto& term : terms) {
      depth += static_cast<double>(term.first.size(1));
    }
    return depth * static_cast<double>(output.numel());
  }
};

}  // namespace mezzo::encoder::cpu
