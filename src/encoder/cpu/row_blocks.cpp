#include "encoder/cpu/row_blocks.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "encoder/cpu/simd/kernels.h"
#include "kernels/cpu/share_out.h"

namespace mezzo::encoder::cpu {

using kernels::cpu::share_begin;
namespace {

constexpr int64_t kSmallestRowBlock = 24;  // smaller ones read panels from afar more often than they work on them
constexpr double kTasksOfWhatIsLeft = 2.0;

}  // namespace

RowBlocks row_blocks(std::span<const ProductSum> sums, int64_t tile_rows) {
  RowBlocks tasks;
  for (int64_t thread = 0, threads = at::get_num_threads(); thread < threads; ++thread) {
    struct Part {
      RowBlock rows;
      double of_a_row;  // operations
    };
    std::vector<Part> parts;
    double left = 0;
    for (size_t i = 0; i < sums.size(); ++i) {
      if (sums[i].output.numel() == 0) {
        continue;
      }
      const int64_t rows = sums[i].output.size(0), tiles = (rows + tile_rows - 1) / tile_rows;
      const int64_t begin = share_begin(tiles, thread, threads) * tile_rows,
                    end = std::min(rows, share_begin(tiles, thread + 1, threads) * tile_rows);
      const double of_a_row = std::max(sums[i].operations() / static_cast<double>(rows), 1.0);
      parts.push_back({{i, begin, end}, of_a_row});
      left += of_a_row * static_cast<double>(end - begin);
    }
    for (auto& [rows, of_a_row] : parts) {
      while (rows.begin < rows.end) {
        const int64_t wanted = static_cast<int64_t>(left / kTasksOfWhatIsLeft / of_a_row) / tile_rows * tile_rows;
        const int64_t end = std::min(rows.end, rows.begin + std::clamp(wanted, kSmallestRowBlock, kLargestRowBlock));
        tasks.blocks.push_back({rows.sum, rows.begin, end});
        left -= of_a_row * static_cast<double>(end - rows.begin);
        rows.begin = end;
      }
    }
    tasks.ends.push_back(static_cast<int64_t>(tasks.blocks.size()));
  }
  return tasks;
}

}  // namespace mezzo::encoder::cpu
