#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "encoder/cpu/product_sum.h"

namespace mezzo::encoder::cpu {

/// A part of the output of one of several sums.
struct ProductBlock {
  size_t sum;
  int64_t begin, end;             ///< rows
  int64_t first_column, columns;  ///< from the first column of a panel on
};

struct ProductBlocks {
  std::vector<ProductBlock> blocks;
  std::vector<int64_t> ends;  ///< of each thread's
};

/// How threads share sums. Threads form a grid over each output, and each thread owns one cell. So with many threads no
/// thread reads a whole matrix. A thread's large blocks come first, and smaller ones towards the end, where threads
/// should be done together.
/// @param tile_rows      rows that a kernel computes together
/// @param panel_columns  columns of a packed panel
ProductBlocks product_blocks(std::span<const ProductSum> sums, int64_t tile_rows, int64_t panel_columns);

}  // namespace mezzo::encoder::cpu
