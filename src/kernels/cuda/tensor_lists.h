#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/cuda/launchers.h"

/// Many tensors as one launch takes them.
namespace mezzo::kernels::MEZZO_CUDA {

/// Fills lists of tensors with at most so many each, and calls `take(list)` for each
/// that is full, or the last.
template <class List, class Items, class Add, class Take>
void for_lists(const Items& items, int most, List list, const Add& add, const Take& take) {
  list.count = 0;
  list.first_block[0] = 0;
  for (const auto& item : items) {
    const int64_t blocks = add(list, item);
    if (blocks == 0) {
      continue;  // it has no elements
    }
    list.first_block[list.count + 1] = list.first_block[list.count] + static_cast<int32_t>(blocks);
    if (++list.count == most) {
      take(list);
      list.count = 0;
    }
  }
  if (list.count > 0) {
    take(list);
  }
}

inline int64_t blocks_of(int64_t size) { return ceil_div(size, kChunk); }

inline float* number(const at::Tensor& tensor) { return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr; }

}  // namespace mezzo::kernels::MEZZO_CUDA
