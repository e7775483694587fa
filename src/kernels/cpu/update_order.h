#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace mezzo::kernels::cpu {

/// Whether optimizers move memory to the NUMA nodes that use it: on hosts where several nodes have processors. A page
/// belongs to the node of the thread that writes it first, and threads of other nodes reach it more slowly. Tests may
/// change the value.
bool& uses_numa_nodes();

/// Moves CPU tensors to new memory. Each chunk of it is first written by the thread that owns the chunk in an update.
/// Values do not change, and views use the new memory, too. A tensor stays where it is if it does not fill its storage,
/// if it is smaller than a chunk, or if there is not enough memory.
/// @param params  of an update, in its order
/// @param tensors  one for each of them, of its size; undefined: none to move
void place_in_update_order(const std::vector<at::Tensor>& params, const std::vector<at::Tensor>& tensors);

}  // namespace mezzo::kernels::cpu
