#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/cuda/launchers.h"

/// Many tensors as one launch takes them.
namespace mezzo::kernels::MEZZO_CUDA {

/// Fills lists of tensors with at most List::kMost each, and calls `take(list)` for each
/// that is full, or the last.
/// @param add  appends an item to a list, and returns its number of blocks
template <class List, class Items, class Add, class Take>
void for_lists(const Items& items, List list, const Add& add, const Take& take) {
  list.count = 0;
  list.first_block[0] = 0;
  for (const auto& item : items) {
    const int64_t blocks = add(list, item);
    list.first_block[list.count + 1] = list.first_block[list.count] + static_cast<int32_t>(blocks);
    if (++list.count == List::kMost) {
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
