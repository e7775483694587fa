#include "encoder/cuda/attention_launchers.h"
#include "encoder/cuda/relative_scores.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"

// A lone first query meets each key from one distance, so that there is one product for each key and head.

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

int64_t hidden_of(const FirstQueryScoresArguments& a) { return int64_t{a.num_heads} * a.head_size; }

template <class Memory>
void reads_inputs(Memory& memory, const FirstQueryScoresArguments& a) {
  memory.reads(a.sequences.table, 2 * a.sequences.count);
  memory.reads(a.rows - (a.sequences.longest - 1), a.sequences.longest);
}

/// The key that a warp takes, and its row of the table.
struct Key {
  int64_t row, of_table;
  bool is_there;
};

MEZZO_DEVICE Key key_of(const Block& block, const FirstQueryScoresArguments& a) {
  const auto parts = ceil_div(a.sequences.longest, kWarps), sequence = block.index() / parts;
  const auto place = static_cast<int>(block.index() % parts) * kWarps + block.thread() / kWarp;
  const int32_t* const own = a.sequences.table + 2 * sequence;
  if (place >= own[1]) {
    return {0, 0, false};
  }
  return {own[0] + place, row_of(a.rows, a.num_rows, -place), true};
}

Grid grid_of_keys(const FirstQueryScoresArguments& a) {
  return {a.sequences.count * ceil_div(a.sequences.longest, kWarps), kThreads};
}

struct FirstQueryScores {
  template <class Memory>
  static void uses(Memory& memory, const FirstQueryScoresArguments& a) {
    reads_inputs(memory, a);
    memory.reads(a.key, a.sequences.num_rows * hidden_of(a));
    memory.reads(a.table, a.num_rows * hidden_of(a));
    memory.writes(a.scores, a.num_heads * a.sequences.num_rows);
  }

  MEZZO_DEVICE static void run(const Block& block, const FirstQueryScoresArguments& a) {
    const Key key = key_of(block, a);
    const int lane = block.thread() % kWarp;
    for (int head = 0; key.is_there && head < a.num_heads; ++head) {
      const int64_t first = int64_t{head} * a.head_size, of_table = key.of_table * a.num_heads * a.head_size + first;
      float sum = 0;
      for (int d = lane; d < a.head_size; d += kWarp) {
        sum += load(a.key, key.row * a.key.row_stride + first + d) * load(a.table, of_table + d);
      }
      sum = warp_sum(block, sum);
      if (lane == 0) {
        a.scores[head * a.sequences.num_rows + key.row] = sum;
      }
    }
  }
};

struct FirstQueryScoresKeys {
  template <class Memory>
  static void uses(Memory& memory, const FirstQueryScoresBackwardArguments& b) {
    const FirstQueryScoresArguments& a = b.forward;
    reads_inputs(memory, a);
    memory.reads(a.table, a.num_rows * hidden_of(a));
    memory.reads(b.grad_scores, a.num_heads * a.sequences.num_rows);
    memory.updates(b.grad_key, a.sequences.num_rows * hidden_of(a));
  }

  MEZZO_DEVICE static void run(const Block& block, const FirstQueryScoresBackwardArguments& b) {
    const FirstQueryScoresArguments& a = b.forward;
    const Key key = key_of(block, a);
    const int hidden = a.num_heads * a.head_size;
    for (int column = block.thread() % kWarp; key.is_there && column < hidden; column += kWarp) {
      const float grad = load(b.grad_scores, column / a.head_size * a.sequences.num_rows + key.row);
      const int64_t at = key.row * b.grad_key.row_stride + column;
      store(b.grad_key, at, load(b.grad_key, at) + grad * load(a.table, key.of_table * hidden + column));
    }
  }
};

/// A block takes 32 columns of a row of the table; its warps take sequences in turn, whose keys at the row's
/// distances lie side by side.
struct FirstQueryScoresTable {
  template <class Memory>
  static void uses(Memory& memory, const FirstQueryScoresBackwardArguments& b) {
    const FirstQueryScoresArguments& a = b.forward;
    reads_inputs(memory, a);
    memory.reads(a.key, a.sequences.num_rows * hidden_of(a));
    memory.reads(b.grad_scores, a.num_heads * a.sequences.num_rows);
    memory.writes(b.grad_table, a.num_rows * hidden_of(a));
  }

  MEZZO_DEVICE static void run(const Block& block, const FirstQueryScoresBackwardArguments& b) {
    const FirstQueryScoresArguments& a = b.forward;
    const int hidden = a.num_heads * a.head_size, tiles = static_cast<int>(ceil_div(hidden, kWarp));
    const int row = static_cast<int>(block.index() / tiles), lane = block.thread() % kWarp,
              column = static_cast<int>(block.index() % tiles) * kWarp + lane;
    const int begin = first_place(a, row), end = first_place(a, row - 1);
    float sum = 0;
    for (int64_t sequence = block.thread() / kWarp; column < hidden && sequence < a.sequences.count;
         sequence += kWarps) {
      const int32_t* const own = a.sequences.table + 2 * sequence;
      for (int place = begin; place < end && place < own[1]; ++place) {
        const int64_t key = own[0] + place;
        sum += load(b.grad_scores, column / a.head_size * a.sequences.num_rows + key) *
               load(a.key, key * a.key.row_stride + column);
      }
    }
    auto* const sums = block.shared<float>();
    sums[block.thread()] = sum;
    block.sync();
    if (block.thread() < kWarp && column < hidden) {
      float total = 0;
      for (int warp = 0; warp < kWarps; ++warp) {
        total += sums[warp * kWarp + lane];
      }
      b.grad_table[int64_t{row} * hidden + column] = total;
    }
  }

 private:
  /// Of those whose row is `row` or before: rows never decrease with the distance, which is minus the place.
  MEZZO_DEVICE static int first_place(const FirstQueryScoresArguments& a, int row) {
    int low = 0, high = a.sequences.longest;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (row_of(a.rows, a.num_rows, -middle) <= row) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
};

}  // namespace

void first_query_scores(const FirstQueryScoresArguments& arguments, Stream stream) {
  launch<FirstQueryScores>(grid_of_keys(arguments), stream, arguments);
}

void first_query_scores_backward(const FirstQueryScoresBackwardArguments& arguments, Stream stream) {
  const FirstQueryScoresArguments& a = arguments.forward;
  launch<FirstQueryScoresKeys>(grid_of_keys(a), stream, arguments);
  launch<FirstQueryScoresTable>(
      Grid{a.num_rows * ceil_div(hidden_of(a), kWarp), kThreads, kThreads * static_cast<int>(sizeof(float))}, stream,
      arguments);
}

}  // namespace mezzo::encoder::MEZZO_CUDA
