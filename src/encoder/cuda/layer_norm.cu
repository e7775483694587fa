#include <algorithm>

#include "encoder/cuda/norm_rows.h"
#include "encoder/cuda/row_launchers.h"

// The forward passes read their inputs once, and write the result once. For backward they also write the normalised
// rows once.

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

constexpr int kThreads = 128;  // of kernels that do not normalise

template <bool kWhole>
struct ResidualNorm {
  template <class Memory>
  static void uses(Memory& memory, const ResidualNormArguments& a) {
    memory.reads(a.product, a.rows * a.columns);
    memory.reads(a.residual, a.rows * a.columns);
    memory.reads(a.bias, a.columns);
    memory.reads(a.row_numbers, a.rows);
    memory.reads(a.mask.step_offset, 1);
    uses_of_norm(memory, a.norm, a.to, a.rows, a.columns);
  }

  MEZZO_DEVICE static void run(const Block& block, const ResidualNormArguments& a) {
    auto *scratch = block.shared<float>(), *row = block.shared<float>(kNormSumsBytes);
    const int64_t number = block.index(), begin = number * a.columns, end = begin + a.columns;
    const int64_t mask_begin = mask_row(a.row_numbers, number) * a.columns;
    float sum = 0;
    for_columns(block, a.columns, [&](int64_t c) {
      const Four product = Fours<kWhole>::load(a.product, begin + c, end),
                 residual = Fours<kWhole>::load(a.residual, begin + c, end),
                 bias = Fours<kWhole>::load_bias(a.bias, a.product.element, c, a.columns);
      const Four factors = mask_four<kWhole>(a.mask, mask_begin + c);
      for (int i = 0; i < 4; ++i) {
        if (counts(c, i, a.columns)) {
          sum += row[c + i] = masked(product.at[i] + bias.at[i], factors.at[i]) + residual.at[i];
        }
      }
    });
    finish_norm<kWhole>(block, row, scratch, sum, a.norm, Mask{}, number, a.to, a.columns);
  }
};

MEZZO_DEVICE bool has_row(int64_t rows, int64_t index) { return index >= 0 && index < rows; }

template <bool kWhole>
struct EmbeddingNorm {
  template <class Memory>
  static void uses(Memory& memory, const EmbeddingNormArguments& a) {
    for (const Span& table : {a.word, a.position, a.token_type}) {
      memory.reads(table, a.rows * a.columns);
    }
    for (const int64_t* numbers : {a.ids, a.positions, a.token_types}) {
      memory.reads(numbers, a.rows);
    }
    memory.reads(a.mask.step_offset, 1);
    uses_of_norm(memory, a.norm, a.to, a.rows, a.columns);
  }

  MEZZO_DEVICE static void run(const Block& block, const EmbeddingNormArguments& a) {
    auto *scratch = block.shared<float>(), *row = block.shared<float>(kNormSumsBytes);
    const int64_t number = block.index();
    const int64_t id = a.ids[number], place = a.positions[number],
                  type = a.token_types != nullptr ? a.token_types[number] : 0;
    const bool are_there =
        has_row(a.words, id) && has_row(a.positions_of_table, place) && has_row(a.token_types_of_table, type);
    block.require(are_there, "embedding_layer_norm: an id, position or token type is out of its table's range");
    if (!are_there) {
      return;  // as all of the block do
    }
    const int64_t word = id * a.columns, position = place * a.columns, token_type = type * a.columns;
    float sum = 0;
    for_columns(block, a.columns, [&](int64_t c) {
      const Four words = Fours<kWhole>::load(a.word, word + c, word + a.columns),
                 positions = Fours<kWhole>::load(a.position, position + c, position + a.columns),
                 types = Fours<kWhole>::load(a.token_type, token_type + c, token_type + a.columns);
      for (int i = 0; i < 4; ++i) {
        if (counts(c, i, a.columns)) {
          sum += row[c + i] = words.at[i] + types.at[i] + positions.at[i];
        }
      }
    });
    finish_norm<kWhole>(block, row, scratch, sum, a.norm, a.mask, number, a.to, a.columns);
  }
};

/// The grid of the backward pass. Each warp takes rows and has three separate sums in shared memory. Few rows go to all
/// multiprocessors. Of many rows each warp takes several, so that few parts of the sums are written.
struct NormCut {
  static constexpr int kMostWarps = 8, kBlocksAtOnce = 3, kSums = 3;
  int warps;
  int64_t blocks;

  NormCut(int64_t rows, int64_t columns) {
    const int multiprocessors = device_limits().multiprocessors;
    const int64_t fitting = 64 * 1024 / row_bytes(kSums, columns > 0 ? columns : 1),  // every GPU has that
        wanted = ceil_div(rows, multiprocessors);
    warps = static_cast<int>(std::clamp<int64_t>(wanted, 1, std::clamp<int64_t>(fitting, 1, kMostWarps)));
    blocks = std::min<int64_t>(ceil_div(rows, warps), int64_t{kBlocksAtOnce} * multiprocessors);
  }
};

struct NormBackwardParts : NormBackwardArguments {
  int64_t parts;  ///< blocks
};

/// Gradients of rows, a warp each, and their sums. Moves of each row its gradient and normalised elements, from memory
/// once, and one or two gradients; and three sums a block.
template <bool kWhole>
struct NormBackward {
  static constexpr int kMostThreads = NormCut::kMostWarps * kWarp, kBlocksAtOnce = NormCut::kBlocksAtOnce;

  template <class Memory>
  static void uses(Memory& memory, const NormBackwardParts& a) {
    memory.reads(a.grad, a.rows * a.columns);
    memory.reads(a.normalised, a.rows * a.columns);
    memory.reads(a.rstd, a.rows);
    memory.reads(a.weight, a.columns);
    memory.reads(a.row_numbers, a.rows);
    memory.reads(a.mask.step_offset, 1);
    memory.reads(a.added, a.rows * a.columns);
    memory.writes(a.product, a.rows * a.columns);
    memory.writes(a.residual, a.rows * a.columns);
    memory.writes(a.sums, a.parts * NormCut::kSums * a.columns);
  }

  /// Four columns of a row.
  struct Loaded {
    Four grad, normalised, weight, added;
  };

  MEZZO_DEVICE static void run(const Block& block, const NormBackwardParts& a) {
    const int64_t columns = a.columns;
    const int warp = block.warp(), warps = block.threads() / kWarp;
    float* const shared = block.shared<float>();
    const auto sums_of = [&](int which) { return shared + (int64_t{which} * warps + warp) * columns; };
    const int64_t first = block.index() * warps, left = a.rows - first;
    const int rows = warps < left ? warps : static_cast<int>(left);  // of the first turn: each begins sums
    for (int64_t number = first + warp; number < a.rows; number += a.parts * warps) {
      add_row(block, a, number, number < first + warps, sums_of(0), sums_of(1), sums_of(2));
    }
    block.sync();
    float* const to = a.sums + block.index() * NormCut::kSums * columns;
    for (int which = 0; which < NormCut::kSums; ++which) {
      const bool is_there = which < 2 || a.product.data != nullptr;
      sum_rows(block, shared + int64_t{which} * warps * columns, is_there ? rows : 0, columns, to + which * columns);
    }
  }

 private:
  /// The first row of a warp begins its sums.
  MEZZO_DEVICE static void add_row(const Block& block,
                                   const NormBackwardArguments& a,
                                   int64_t number,
                                   bool is_first,
                                   float* to_weight,
                                   float* to_bias,
                                   float* to_product) {
    const int64_t columns = a.columns, begin = number * columns, end = begin + columns,
                  mask_begin = mask_row(a.row_numbers, number) * columns;
    const auto load = [&](int64_t c) {
      return Loaded{Fours<kWhole>::load(a.grad, begin + c, end), Fours<kWhole>::load(a.normalised, begin + c, end),
                    Fours<kWhole>::load(a.weight, c, columns), Fours<kWhole>::load_if_any(a.added, begin + c, end)};
    };
    const auto mask = [&](int64_t c, Four& four) {
      const Four factors = mask_four<kWhole>(a.mask, mask_begin + c);
      for (int i = 0; i < 4; ++i) {
        four.at[i] = masked(four.at[i], factors.at[i]);
      }
    };
    const auto add = [&](float* to, int64_t c, Four four) {
      if (!is_first) {
        const Four sum = Fours<kWhole>::template load<float>(to, c, columns);
        for (int i = 0; i < 4; ++i) {
          four.at[i] += sum.at[i];
        }
      }
      Fours<kWhole>::template store<float>(to, c, columns, four);
    };
    float of_grad = 0, of_product = 0;
    for_columns_of_warp<2>(block, columns, load, [&](int64_t c, Loaded& row) {
      if (a.mask_is_on_output) {
        mask(c, row.grad);
      }
      Four product;
      for (int i = 0; i < 4; ++i) {  // zeros behind the last column
        product.at[i] = row.grad.at[i] * row.normalised.at[i];
        of_grad += row.grad.at[i] * row.weight.at[i];
        of_product += product.at[i] * row.weight.at[i];
      }
      add(to_weight, c, product);
      add(to_bias, c, row.grad);
    });
    const float mean = warp_sum(block, of_grad) / static_cast<float>(columns);
    const float slope = warp_sum(block, of_product) / static_cast<float>(columns);
    const float rstd = a.rstd[number];
    for_columns_of_warp<2>(block, columns, load, [&](int64_t c, Loaded& row) {
      if (a.mask_is_on_output) {
        mask(c, row.grad);
      }
      Four result;
      for (int i = 0; i < 4; ++i) {
        result.at[i] =
            (row.grad.at[i] * row.weight.at[i] - mean - row.normalised.at[i] * slope) * rstd + row.added.at[i];
      }
      Fours<kWhole>::store(a.residual, begin + c, end, result);
      if (a.product.data != nullptr) {
        mask(c, result);
        Fours<kWhole>::store(a.product, begin + c, end, result);
        add(to_product, c, result);
      }
    });
  }

  MEZZO_DEVICE static void sum_rows(const Block& block, const float* from, int rows, int64_t columns, float* to) {
    MEZZO_ROLLED
    for (int64_t c = 4 * block.thread(); c < columns; c += 4 * block.threads()) {
      Four sum{};
      for (int row = 0; row < rows; ++row) {
        const Four four = Fours<kWhole>::template load<float>(from, row * columns + c, (row + 1) * columns);
        for (int i = 0; i < 4; ++i) {
          sum.at[i] += four.at[i];
        }
      }
      Fours<kWhole>::template store<float>(to, c, columns, sum);
    }
  }
};

/// A warp a part of the rows, a lane a column: reads every sum once.
struct SumColumns {
  static constexpr int kParts = 32, kMostThreads = kParts * kWarp, kBlocksAtOnce = 1;

  template <class Memory>
  static void uses(Memory& memory, const ColumnSumArguments& a) {
    memory.reads(a.sums, a.rows * a.columns);
    memory.writes(a.totals, a.columns);
  }

  MEZZO_DEVICE static void run(const Block& block, const ColumnSumArguments& a) {
    auto* parts = block.shared<float>();
    const int lane = block.thread() % kWarp, part = block.thread() / kWarp;
    const int64_t column = block.index() * kWarp + lane;
    float sum = 0;
    if (column < a.columns) {
      MEZZO_UNROLLED_BY(8)
      for (int64_t row = part; row < a.rows; row += kParts) {
        sum += a.sums[row * a.columns + column];
      }
    }
    parts[block.thread()] = sum;
    block.sync();
    if (part == 0 && column < a.columns) {
      for (int other = 1; other < kParts; ++other) {
        sum += parts[other * kWarp + lane];
      }
      a.totals[column] = sum;
    }
  }
};

/// Counts the elements that come before each index. A lane takes an index, and a warp a part of the other indices. For
/// the counts of short texts this is faster than any sort of several passes.
struct SortFew {
  static constexpr int kParts = 8;

  template <class Memory>
  static void uses(Memory& memory, const SortArguments& a) {
    memory.reads(a.indices, a.count);
    memory.writes(a.sorted, a.count);
    memory.writes(a.order, a.count);
  }

  MEZZO_DEVICE static void run(const Block& block, const SortArguments& a) {
    auto* const before = block.shared<int>();
    const int lane = block.thread() % kWarp, part = block.thread() / kWarp;
    const int64_t i = block.index() * kWarp + lane, own = i < a.count ? a.indices[i] : 0;
    int found = 0;
    for (int64_t j = part; j < a.count; j += kParts) {
      const int64_t other = a.indices[j];
      found += other < own || (other == own && j < i) ? 1 : 0;
    }
    before[block.thread()] = found;
    block.sync();
    if (part == 0 && i < a.count) {
      for (int p = 1; p < kParts; ++p) {
        found += before[p * kWarp + lane];
      }
      a.sorted[found] = own;
      a.order[found] = i;
    }
  }
};

/// A block an index and kThreads columns: the first of its equals adds the rows of all of
/// them, in order. Each row is read once; kAtOnce of them are on their way at a time, as some
/// indices have most of the rows.
struct AddRows {
  static constexpr int kAtOnce = 16;

  template <class Memory>
  static void uses(Memory& memory, const AddRowsArguments& a) {
    memory.reads(a.indices, a.count);
    memory.reads(a.order, a.count);
    memory.reads(a.rows, a.count * a.columns);
    memory.updates(a.table, a.count * a.columns);
  }

  MEZZO_DEVICE static void run(const Block& block, const AddRowsArguments& a) {
    const auto number = static_cast<uint32_t>(block.index()),
               tiles = static_cast<uint32_t>(ceil_div(a.columns, kThreads));
    const int64_t first = number / tiles, column = int64_t{number % tiles} * kThreads + block.thread();
    const int64_t index = a.indices[first];
    if (first > 0 && a.indices[first - 1] == index) {
      return;
    }
    auto* of_equals = block.shared<int64_t>();  // their rows; behind the last one -1
    const bool has_column = column < a.columns;
    float sum = has_column ? a.table[index * a.columns + column] : 0;
    bool has_more = true;
    for (int64_t begin = first; has_more; begin += kThreads) {
      const int64_t i = begin + block.thread();
      of_equals[block.thread()] = i < a.count && a.indices[i] == index ? a.order[i] : -1;
      block.sync();
      for (int k = 0; k < kThreads && has_column && of_equals[k] >= 0; k += kAtOnce) {
        float values[kAtOnce];
        for (int j = 0; j < kAtOnce; ++j) {
          const int64_t row = of_equals[k + j];
          values[j] = row >= 0 ? a.rows[row * a.columns + column] : 0;
        }
        for (int j = 0; j < kAtOnce; ++j) {
          sum = of_equals[k + j] >= 0 ? sum + values[j] : sum;
        }
      }
      has_more = of_equals[kThreads - 1] >= 0;
      block.sync();  // before they are overwritten
    }
    if (has_column) {
      a.table[index * a.columns + column] = sum;
    }
  }
};

struct AddToRows {
  template <class Memory>
  static void uses(Memory& memory, const AddToRowsArguments& a) {
    memory.reads(a.numbers, a.count);
    memory.reads(a.rows, a.count * a.columns);
    memory.updates(a.to, a.count * a.columns);
  }

  MEZZO_DEVICE static void run(const Block& block, const AddToRowsArguments& a) {
    const int64_t from = block.index() * a.columns, to = a.numbers[block.index()] * a.columns;
    for_columns(block, a.columns, [&](int64_t c) {
      Four sum = load_four(a.to, to + c, to + a.columns);
      const Four values = load_four(a.rows, from + c, from + a.columns);
      for (int i = 0; i < 4; ++i) {
        sum.at[i] += values.at[i];
      }
      store_four(a.to, to + c, to + a.columns, sum);
    });
  }
};

}  // namespace

void residual_layer_norm(const ResidualNormArguments& a, Stream stream) {
  with_whole_fours(
      a.columns,
      {a.product.data, a.residual.data, a.bias.data, a.norm.weight.data, a.norm.bias.data, a.to.output.data,
       a.to.copy.data, a.to.normalised.data},
      [&]<class Whole>(Whole) { launch<ResidualNorm<Whole::value>>(norm_grid(a.rows, a.columns), stream, a); });
}

void embedding_layer_norm(const EmbeddingNormArguments& a, Stream stream) {
  with_whole_fours(
      a.columns,
      {a.word.data, a.position.data, a.token_type.data, a.norm.weight.data, a.norm.bias.data, a.to.output.data,
       a.to.copy.data, a.to.normalised.data},
      [&]<class Whole>(Whole) { launch<EmbeddingNorm<Whole::value>>(norm_grid(a.rows, a.columns), stream, a); });
}

int64_t norm_parts(int64_t rows, int64_t columns) { return NormCut(rows, columns).blocks; }

void layer_norm_backward(const NormBackwardArguments& a, Stream stream) {
  const NormCut cut(a.rows, a.columns);
  with_whole_fours(
      a.columns, {a.grad.data, a.normalised.data, a.weight.data, a.product.data, a.residual.data, a.added.data, a.sums},
      [&]<class Whole>(Whole) {
        launch<NormBackward<Whole::value>>(
            Grid{cut.blocks, cut.warps * kWarp, row_bytes(NormCut::kSums * cut.warps, a.columns)}, stream,
            NormBackwardParts{a, cut.blocks});
      });
}

void sum_columns(const ColumnSumArguments& a, Stream stream) {
  constexpr int kThreadsOfSum = SumColumns::kParts * kWarp;
  launch<SumColumns>(Grid{ceil_div(a.columns, kWarp), kThreadsOfSum, kThreadsOfSum * int{sizeof(float)}}, stream, a);
}

void sort_few(const SortArguments& a, Stream stream) {
  constexpr int kThreadsOfSort = SortFew::kParts * kWarp;
  launch<SortFew>(Grid{ceil_div(a.count, kWarp), kThreadsOfSort, kThreadsOfSort * int{sizeof(int)}}, stream, a);
}

void add_rows_at(const AddRowsArguments& a, Stream stream) {
  launch<AddRows>(Grid{a.count * ceil_div(a.columns, kThreads), kThreads, kThreads * int{sizeof(int64_t)}}, stream, a);
}

void add_to_rows(const AddToRowsArguments& a, Stream stream) {
  launch<AddToRows>(Grid{a.count, kThreads, 0}, stream, a);
}

}  // namespace mezzo::encoder::MEZZO_CUDA
