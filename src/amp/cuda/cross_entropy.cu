#include <cmath>

#include "amp/cuda/cross_entropy_launchers.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/chunks.h"

namespace mezzo::MEZZO_CUDA {
namespace {

constexpr int kMostWarps = 8, kSumThreads = 256;

/// Calls `body(c, logits)` at every fourth column of a row; each thread takes its own.
template <class Body>
MEZZO_DEVICE void for_logits(const Block& block, const CrossEntropyArguments& a, const Body& body) {
  const int64_t begin = block.index() * a.columns, end = begin + a.columns;
  for (int64_t c = 4 * block.thread(); c < a.columns; c += 4 * block.threads()) {
    body(c, load_four(a.logits, begin + c, end));
  }
}

/// The largest `value` of the block, NaN left aside, in each of its threads. `scratch`: as for block_sum.
MEZZO_DEVICE float block_max(const Block& block, float value, float* scratch) {
  for (int other = kWarp / 2; other > 0; other /= 2) {
    value = ::fmaxf(value, block.shuffle_xor(value, other));
  }
  if (block.thread() % kWarp == 0) {
    scratch[block.thread() / kWarp] = value;
  }
  block.sync();
  for (int warp = 0; warp < block.threads() / kWarp; ++warp) {
    value = ::fmaxf(value, scratch[warp]);
  }
  return value;
}

/// A block a row. Reads its logits, from memory once, and writes three numbers.
struct CrossEntropyForward {
  template <class Memory>
  static void uses(Memory& memory, const CrossEntropyArguments& a) {
    memory.reads(a.logits, a.rows * a.columns);
    memory.reads(a.targets, a.rows);
    memory.writes(a.largest, a.rows);
    memory.writes(a.log_sum, a.rows);
    memory.writes(a.losses, a.rows);
  }

  MEZZO_DEVICE static void run(const Block& block, const CrossEntropyArguments& a) {
    auto* scratch = block.shared<float>();
    float largest = -INFINITY, sum = 0;
    for_logits(block, a, [&](int64_t c, const Four& logits) {
      for (int i = 0; i < 4 && c + i < a.columns; ++i) {
        largest = ::fmaxf(largest, logits.at[i]);
      }
    });
    largest = block_max(block, largest, scratch);
    for_logits(block, a, [&](int64_t c, const Four& logits) {
      for (int i = 0; i < 4 && c + i < a.columns; ++i) {
        sum += ::expf(logits.at[i] - largest);
      }
    });
    sum = block_sum(block, sum, scratch + kMostWarps);
    if (block.thread() == 0) {
      const int64_t row = block.index(), target = a.targets[row];
      const bool counts = target != a.ignored, is_there = target >= 0 && target < a.columns;
      block.require(is_there || !counts, "cross_entropy: a target is not a class");
      a.largest[row] = largest;
      a.log_sum[row] = ::logf(sum);
      // The difference first: large logits would swallow the logarithm.
      a.losses[row] = counts && is_there ? largest - load(a.logits, row * a.columns + target) + a.log_sum[row] : 0;
    }
  }
};

/// One block, always adding in the same order. Reads a number a row, and a target a row if counted rows are summed up.
struct CrossEntropyTotal {
  template <class Memory>
  static void uses(Memory& memory, const CrossEntropyArguments& a) {
    memory.reads(a.losses, a.rows);
    memory.reads(a.targets, a.count != nullptr ? a.rows : 0);
    memory.writes(a.total, 1);
    memory.writes(a.count, 1);
  }

  MEZZO_DEVICE static void run(const Block& block, const CrossEntropyArguments& a) {
    float sum = 0, count = 0;
    for (int64_t row = block.thread(); row < a.rows; row += block.threads()) {
      sum += a.losses[row];
      count += a.count != nullptr && a.targets[row] != a.ignored ? 1.0f : 0.0f;
    }
    auto* scratch = block.shared<float>();
    sum = block_sum(block, sum, scratch);
    count = block_sum(block, count, scratch + kSumThreads / kWarp);
    if (block.thread() == 0) {
      *a.total = a.count != nullptr ? sum / count : sum;
      if (a.count != nullptr) {
        *a.count = count;
      }
    }
  }
};

/// A block a row. Reads its logits and writes their gradients.
struct CrossEntropyBackward {
  template <class Memory>
  static void uses(Memory& memory, const CrossEntropyArguments& a) {
    memory.reads(a.logits, a.rows * a.columns);
    memory.reads(a.targets, a.rows);
    memory.reads(a.largest, a.rows);
    memory.reads(a.log_sum, a.rows);
    memory.reads(a.count, 1);
    memory.reads(a.grad, a.grad_is_of_rows ? a.rows : 1);
    memory.writes(a.grad_logits, a.rows * a.columns);
  }

  MEZZO_DEVICE static void run(const Block& block, const CrossEntropyArguments& a) {
    const int64_t row = block.index(), target = a.targets[row], begin = row * a.columns, end = begin + a.columns;
    const float largest = a.largest[row], log_sum = a.log_sum[row],
                of_loss = a.grad[a.grad_is_of_rows ? row : 0] / (a.count != nullptr ? *a.count : 1.0f),
                grad = target == a.ignored ? 0.0f : of_loss;
    for_logits(block, a, [&](int64_t c, const Four& logits) {
      Four result;
      for (int i = 0; i < 4; ++i) {
        result.at[i] = (::expf(logits.at[i] - largest - log_sum) - (c + i == target ? 1.0f : 0.0f)) * grad;
      }
      store_four(a.grad_logits, begin + c, end, result);
    });
  }
};

/// Four columns a thread, while a block has enough of them: one warp up to 128 classes.
int threads_of(int64_t columns) {
  const int64_t warps = ceil_div(columns, 4 * kWarp);
  return kWarp * static_cast<int>(warps < 1 ? 1 : warps < kMostWarps ? warps : kMostWarps);
}

}  // namespace

void cross_entropy(const CrossEntropyArguments& a, Stream stream) {
  launch<CrossEntropyForward>(Grid{a.rows, threads_of(a.columns), 2 * kMostWarps * int{sizeof(float)}}, stream, a);
  if (a.total != nullptr) {
    launch<CrossEntropyTotal>(Grid{1, kSumThreads, 2 * kSumThreads / kWarp * int{sizeof(float)}}, stream, a);
  }
}

void cross_entropy_backward(const CrossEntropyArguments& a, Stream stream) {
  launch<CrossEntropyBackward>(Grid{a.rows, threads_of(a.columns)}, stream, a);
}

}  // namespace mezzo::MEZZO_CUDA
