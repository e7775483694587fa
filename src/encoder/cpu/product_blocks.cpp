#include "encoder/cpu/product_blocks.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "encoder/cpu/simd/kernels.h"
#include "kernels/cpu/share_out.h"

namespace mezzo::encoder::cpu {

using kernels::cpu::share_begin;
namespace {

constexpr int64_t kSmallestRowBlock = 24;  // a smaller block reads panels from afar more often than it uses them
constexpr double kTasksOfWhatIsLeft = 2.0;
constexpr int64_t kColumnTasks = 4;  // of a thread whose cell has few rows

// Only rows are cut, unless that reads more than this times the best grid's reads. The columns of a grid share their
// rows, and each packs them for itself.
constexpr double kPaysForAGrid = 1.25;

/// Threads along the rows and along the columns of an output.
struct Grid {
  int64_t down, across;
};

Grid grid_of(const at::Tensor& output, int64_t tile_rows, int64_t panel_columns, int64_t threads) {
  const auto reads = [&](int64_t down) {  // rows and columns that one thread reads
    return std::max(static_cast<double>(tile_rows), static_cast<double>(output.size(0)) / static_cast<double>(down)) +
           std::max(static_cast<double>(panel_columns),
                    static_cast<double>(output.size(1) * down) / static_cast<double>(threads));
  };
  int64_t best = threads;
  for (int64_t down = 1; down < threads; ++down) {
    if (threads % down == 0 && reads(down) < reads(best)) {
      best = down;
    }
  }
  const int64_t down = reads(threads) <= kPaysForAGrid * reads(best) ? threads : best;
  return {down, threads / down};
}

}  // namespace

ProductBlocks product_blocks(std::span<const ProductSum> sums, int64_t tile_rows, int64_t panel_columns) {
  struct Cell {
    ProductBlock left;
    double of_a_row;  // operations
    bool is_of_columns;
  };
  const int64_t threads = at::get_num_threads();
  std::vector<Grid> grids;
  for (const ProductSum& sum : sums) {
    grids.push_back(grid_of(sum.output, tile_rows, panel_columns, threads));
  }
  ProductBlocks tasks;
  for (int64_t thread = 0; thread < threads; ++thread) {
    std::vector<Cell> cells;
    double left = 0;
    for (size_t i = 0; i < sums.size(); ++i) {
      const int64_t rows = sums[i].output.size(0), columns = sums[i].output.size(1);
      const int64_t tiles = (rows + tile_rows - 1) / tile_rows, panels = (columns + panel_columns - 1) / panel_columns;
      const auto [down, across] = grids[i];
      const int64_t row = thread / across, column = thread % across;
      const int64_t begin = share_begin(tiles, row, down) * tile_rows,
                    end = std::min(rows, share_begin(tiles, row + 1, down) * tile_rows),
                    first = share_begin(panels, column, across) * panel_columns,
                    last = std::min(columns, share_begin(panels, column + 1, across) * panel_columns);
      if (begin < end && first < last) {
        const double of_a_row = std::max(sums[i].operations() / static_cast<double>(rows), 1.0) *
                                static_cast<double>(last - first) / static_cast<double>(columns);
        cells.push_back({{i, begin, end, first, last - first}, of_a_row, across > 1});
        left += of_a_row * static_cast<double>(end - begin);
      }
    }
    for (auto& [cell, of_a_row, is_of_columns] : cells) {
      if (is_of_columns && cell.end - cell.begin <= kLargestRowBlock) {
        const int64_t panels = (cell.columns + panel_columns - 1) / panel_columns,
                      count = std::min(panels, kColumnTasks);
        for (int64_t task = 0; task < count; ++task) {
          const int64_t first = share_begin(panels, task, count) * panel_columns,
                        last = std::min(cell.columns, share_begin(panels, task + 1, count) * panel_columns);
          tasks.blocks.push_back({cell.sum, cell.begin, cell.end, cell.first_column + first, last - first});
        }
        left -= of_a_row * static_cast<double>(cell.end - cell.begin);
        continue;
      }
      while (cell.begin < cell.end) {
        const int64_t wanted = static_cast<int64_t>(left / kTasksOfWhatIsLeft / of_a_row) / tile_rows * tile_rows;
        const int64_t end = std::min(cell.end, cell.begin + std::clamp(wanted, kSmallestRowBlock, kLargestRowBlock));
        tasks.blocks.push_back({cell.sum, cell.begin, end, cell.first_column, cell.columns});
        left -= of_a_row * static_cast<double>(end - cell.begin);
        cell.begin = end;
      }
    }
    tasks.ends.push_back(std::ssize(tasks.blocks));
  }
  return tasks;
}

}  // namespace mezzo::encoder::cpu
