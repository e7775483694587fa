#include "encoder/cuda/norm_rows.h"
#include "encoder/cuda/row_launchers.h"

// The forward passes read what they normalise once, and write its result, and for backward its
// normalised rows, once.

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

constexpr int kThreads = 128;  // of kernels that do not normalise

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
      const Four product = load_four(a.product, begin + c, end), residual = load_four(a.residual, begin + c, end),
                 bias = load_bias(a.bias, a.product.element, c, a.columns);
      const Four factors = mask_four(a.mask, mask_begin + c);
      for (int i = 0; i < 4; ++i) {
        if (counts(c, i, a.columns)) {
          sum += row[c + i] = masked(product.at[i] + bias.at[i], factors.at[i]) + residual.at[i];
        }
      }
    });
    finish_norm(block, row, scratch, sum, a.norm, Mask{}, number, a.to, a.columns);
  }
};

MEZZO_DEVICE bool has_row(int64_t rows, int64_t index) { return index >= 0 && index < rows; }

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
      const Four words = load_four(a.word, word + c, word + a.columns),
                 positions = load_four(a.position, position + c, position + a.columns),
                 types = load_four(a.token_type, token_type + c, token_type + a.columns);
      for (int i = 0; i < 4; ++i) {
        if (counts(c, i, a.columns)) {
          sum += row[c + i] = words.at[i] + types.at[i] + positions.at[i];
        }
      }
    });
    finish_norm(block, row, scratch, sum, a.norm, a.mask, number, a.to, a.columns);
  }
};

/// Some rows, one after the other: their gradients, and what they add to the sums, which are in
/// shared memory meanwhile. Moves of each row its gradient and normalised elements, from memory
/// once, and one or two gradients; and three sums of kRowsOfBlock rows.
struct NormBackward {
  template <class Memory>
  static void uses(Memory& memory, const NormBackwardArguments& a) {
    memory.reads(a.grad, a.rows * a.columns);
    memory.reads(a.normalised, a.rows * a.columns);
    memory.reads(a.rstd, a.rows);
    memory.reads(a.weight, a.columns);
    memory.reads(a.row_numbers, a.rows);
    memory.reads(a.mask.step_offset, 1);
    memory.reads(a.added, a.rows * a.columns);
    memory.writes(a.product, a.rows * a.columns);
    memory.writes(a.residual, a.rows * a.columns);
    memory.writes(a.sums, ceil_div(a.rows, kRowsOfBlock) * 3 * a.columns);
  }

  MEZZO_DEVICE static void run(const Block& block, const NormBackwardArguments& a) {
    auto *scratch = block.shared<float>(), *sums = block.shared<float>(2 * kNormSumsBytes);
    const int64_t columns = a.columns, first = block.index() * kRowsOfBlock;
    const int64_t last = first + kRowsOfBlock < a.rows ? first + kRowsOfBlock : a.rows;
    for_columns(block, columns, [&](int64_t c) {
      for (int i = 0; i < 4 && counts(c, i, columns); ++i) {
        sums[c + i] = sums[columns + c + i] = sums[2 * columns + c + i] = 0;
      }
    });
    for (int64_t number = first; number < last; ++number) {
      const int64_t begin = number * columns, end = begin + columns;
      const int64_t mask_begin = mask_row(a.row_numbers, number) * columns;
      const auto factors_at = [&](int64_t c) { return mask_four(a.mask, mask_begin + c); };
      const auto grad_at = [&](int64_t c) {
        Four grad = load_four(a.grad, begin + c, end);
        if (a.mask_is_on_output) {
          const Four factors = factors_at(c);
          for (int i = 0; i < 4; ++i) {
            grad.at[i] = masked(grad.at[i], factors.at[i]);
          }
        }
        return grad;
      };
      float of_grad = 0, of_product = 0;
      for_columns(block, columns, [&](int64_t c) {
        const Four grad = grad_at(c), normalised = load_four<float>(a.normalised, begin + c, end),
                   weight = load_four(a.weight, c, columns);
        for (int i = 0; i < 4 && counts(c, i, columns); ++i) {
          of_grad += grad.at[i] * weight.at[i];
          of_product += grad.at[i] * weight.at[i] * normalised.at[i];
          sums[c + i] += grad.at[i] * normalised.at[i];
          sums[columns + c + i] += grad.at[i];
        }
      });
      const float mean = block_sum(block, of_grad, scratch) / static_cast<float>(columns);
      const float slope = block_sum(block, of_product, scratch + kNormThreads / kWarp) / static_cast<float>(columns);
      const float rstd = a.rstd[number];
      for_columns(block, columns, [&](int64_t c) {
        const Four grad = grad_at(c), normalised = load_four<float>(a.normalised, begin + c, end),
                   weight = load_four(a.weight, c, columns), added = load_if_any(a.added, begin + c, end);
        Four result;
        for (int i = 0; i < 4; ++i) {
          result.at[i] = (grad.at[i] * weight.at[i] - mean - normalised.at[i] * slope) * rstd + added.at[i];
        }
        store_four(a.residual, begin + c, end, result);
        if (a.product.data != nullptr) {
          const Four factors = factors_at(c);
          for (int i = 0; i < 4; ++i) {
            result.at[i] = masked(result.at[i], factors.at[i]);
            if (counts(c, i, columns)) {
              sums[2 * columns + c + i] += result.at[i];
            }
          }
          store_four(a.product, begin + c, end, result);
        }
      });
      block.sync();  // before the scratch is used again
    }
    float* to = a.sums + block.index() * 3 * columns;
    for_columns(block, columns, [&](int64_t c) {
      for (int i = 0; i < 4 && counts(c, i, columns); ++i) {
        for (int sum = 0; sum < 3; ++sum) {
          to[sum * columns + c + i] = sums[sum * columns + c + i];
        }
      }
    });
  }
};

/// A warp a part of the rows, a lane a column: reads every sum once.
struct SumColumns {
  static constexpr int kParts = 8;

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
#ifdef __CUDACC__
#pragma unroll 8
#endif
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
  launch<ResidualNorm>(norm_grid(a.rows, a.columns), stream, a);
}

void embedding_layer_norm(const EmbeddingNormArguments& a, Stream stream) {
  launch<EmbeddingNorm>(norm_grid(a.rows, a.columns), stream, a);
}

void layer_norm_backward(const NormBackwardArguments& a, Stream stream) {
  launch<NormBackward>(Grid{ceil_div(a.rows, kRowsOfBlock), kNormThreads, 2 * kNormSumsBytes + row_bytes(3, a.columns)},
                       stream, a);
}

void sum_columns(const ColumnSumArguments& a, Stream stream) {
  constexpr int kThreadsOfSum = SumColumns::kParts * kWarp;
  launch<SumColumns>(Grid{ceil_div(a.columns, kWarp), kThreadsOfSum, kThreadsOfSum * int{sizeof(float)}}, stream, a);
}

void add_rows_at(const AddRowsArguments& a, Stream stream) {
  launch<AddRows>(Grid{a.count * ceil_div(a.columns, kThreads), kThreads, kThreads * int{sizeof(int64_t)}}, stream, a);
}

void add_to_rows(const AddToRowsArguments& a, Stream stream) {
  launch<AddToRows>(Grid{a.count, kThreads, 0}, stream, a);
}

}  // namespace mezzo::encoder::MEZZO_CUDA
