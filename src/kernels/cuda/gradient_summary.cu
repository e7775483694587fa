#include "kernels/cuda/block.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/sum_of_squares.h"

namespace mezzo::kernels::MEZZO_CUDA {
namespace {

constexpr int kThreads = 256, kThreadsOfSummary = 1024;
constexpr int scratch_bytes(int threads) { return threads / kWarp * static_cast<int>(sizeof(double)); }

/// Reads every gradient once. Sums are doubles, which hold the square of any float32, so only inf and NaN give inf or
/// NaN.
struct SumSquares {
  template <class Memory>
  static void uses(Memory& memory, const GradientList& list) {
    for (int i = 0; i < list.count; ++i) {
      memory.reads(list.gradients[i].values, list.gradients[i].size);
    }
    memory.writes(list.sums, list.first_block[list.count]);
  }

  MEZZO_DEVICE static void run(const Block& block, const GradientList& list) {
    const Chunk chunk = chunk_of(block, list, list.gradients);
    const Span& gradient = list.gradients[chunk.tensor].values;
    double sums[1] = {};
    add_squares(block, chunk, sums, [&](int64_t first, Four* four) { *four = load_four(gradient, first, chunk.end); });
    const double sum = block_sum(block, sums[0], block.shared<double>());
    if (block.thread() == 0) {
      list.sums[block.index()] = sum;
    }
  }
};

/// One block, so that the order of the sum is always the same.
struct Summarize {
  static constexpr int kMostThreads = kThreadsOfSummary, kBlocksAtOnce = 1;

  template <class Memory>
  static void uses(Memory& memory, const SummaryArguments& a) {
    memory.reads(a.sums, a.count);
    memory.reads(a.scale, 1);
    memory.writes(a.norm, 1);
    memory.writes(a.found_inf, 1);
    memory.writes(a.sum_of_squares, 1);
    memory.writes(a.inv_scale, 1);
    memory.writes(a.clip, 1);
  }

  MEZZO_DEVICE static void run(const Block& block, const SummaryArguments& a) {
    double sum = 0;
    for (int64_t i = block.thread(); i < a.count; i += block.threads()) {
      sum += a.sums[i];
    }
    sum = block_sum(block, sum, block.shared<double>());
    if (block.thread() == 0) {
      const float scale = a.scale != nullptr ? *a.scale : 1, inv_scale = inverse_scale(scale);
      const auto factor = static_cast<double>(inv_scale);
      const auto norm = static_cast<float>(::sqrt(sum) * factor);
      *a.norm = norm;
      *a.found_inf = is_finite(norm) && !is_lost(scale) ? 0.0f : 1.0f;
      *a.sum_of_squares = sum * factor * factor;
      *a.inv_scale = inv_scale;
      *a.clip = clip_by_norm(norm, a.max_norm);
    }
  }
};

}  // namespace

void sum_squares(const GradientList& list, Stream stream) {
  launch_on_chunks<SumSquares>(list, kThreads, scratch_bytes(kThreads), stream);
}

void summarize(const SummaryArguments& arguments, Stream stream) {
  launch<Summarize>(Grid{1, kThreadsOfSummary, scratch_bytes(kThreadsOfSummary)}, stream, arguments);
}

}  // namespace mezzo::kernels::MEZZO_CUDA
