#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "encoder/cpu/product_sum.h"

namespace mezzo::encoder::cpu {

/// Rows of the output of one of several sums.
struct RowBlock {
  size_t sum;
  int64_t begin, end;
};

struct RowBlocks {
  std::vector<RowBlock> blocks;
  std::vector<int64_t> ends;  ///< of each thread's
};

/// How threads share the rows of sums. Every thread owns a part of each sum's rows. Its large blocks
/// come first, and ever smaller ones towards the end, where threads should be done together.
RowBlocks row_blocks(std::span<const ProductSum> sums, int64_t tile_rows);

}  // namespace mezzo::encoder::cpu
