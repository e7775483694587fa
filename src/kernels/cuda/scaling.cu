#include "kernels/cuda/block.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/launchers.h"

namespace mezzo::kernels::MEZZO_CUDA {
namespace {

constexpr int kThreads = 256;
/// A block's shared memory: the inverse of the scale, and its partial sums.
constexpr int kInverseBytes = 16, kSharedBytes = kInverseBytes + kThreads / kWarp * static_cast<int>(sizeof(float));

/// Reads every gradient once. Zeros follow the end of a tensor. Their quotients are not finite if the scale is not,
/// and then found_inf has to be 1.
struct Unscale {
  template <class Memory>
  static void uses(Memory& memory, const UnscaledList& list) {
    for (int i = 0; i < list.count; ++i) {
      memory.reads(list.gradients[i].gradient, list.gradients[i].size);
      memory.writes(list.gradients[i].into, list.gradients[i].size);
    }
    memory.reads(list.scale, 1);
    memory.writes(list.non_finite, list.first_block[list.count]);
  }

  MEZZO_DEVICE static void run(const Block& block, const UnscaledList& list) {
    const Chunk chunk = chunk_of(block, list, list.gradients);
    const Unscaled& gradient = list.gradients[chunk.tensor];
    auto* inverse = block.shared<float>();
    if (block.thread() == 0) {
      *inverse = inverse_scale(*list.scale);
    }
    block.sync();
    const float inv_scale = *inverse;
    float non_finite = 0;
    for_fours(block, chunk, [&](int64_t first) {
      Four four = load_four(gradient.gradient, first, chunk.end);
      for (int i = 0; i < 4; ++i) {
        const float quotient = four.at[i] * inv_scale;
        const bool is_good =
            is_finite(four.at[i]) && (!list.looks_at_results || is_finite(rounded(quotient, gradient.into.element)));
        non_finite += is_good ? 0.0f : 1.0f;
        four.at[i] = quotient;
      }
      if (gradient.into.data != nullptr) {
        store_four(gradient.into, first, chunk.end, four);
      }
    });
    non_finite = block_sum(block, non_finite, block.shared<float>(kInverseBytes));
    if (block.thread() == 0) {
      list.non_finite[block.index()] = non_finite;
    }
  }
};

struct WriteFoundInf {
  template <class Memory>
  static void uses(Memory& memory, const FoundInfArguments& a) {
    memory.reads(a.non_finite, a.count);
    memory.reads(a.scale, 1);
    memory.writes(a.found_inf, 1);
  }

  MEZZO_DEVICE static void run(const Block& block, const FoundInfArguments& a) {
    float non_finite = 0;
    for (int64_t i = block.thread(); i < a.count; i += block.threads()) {
      non_finite += a.non_finite[i];
    }
    non_finite = block_sum(block, non_finite, block.shared<float>());
    if (block.thread() == 0) {
      *a.found_inf = non_finite > 0 || (a.scale != nullptr && is_lost(*a.scale)) ? 1.0f : 0.0f;
    }
  }
};

struct UpdateLossScale {
  template <class Memory>
  static void uses(Memory& memory, const LossScaleArguments& a) {
    memory.updates(a.scale, 1);
    memory.updates(a.counts, kNumLossScaleCounts);
    memory.reads(a.found_inf, 1);
  }

  MEZZO_DEVICE static void run(const Block& block, const LossScaleArguments& a) {
    if (block.thread() == 0) {
      update_loss_scale(*a.scale, a.counts, *a.found_inf != 0, a.rules);
    }
  }
};

}  // namespace

void unscale(const UnscaledList& list, Stream stream) {
  launch_on_chunks<Unscale>(list, kThreads, kSharedBytes, stream);
}

void write_found_inf(const FoundInfArguments& arguments, Stream stream) {
  launch<WriteFoundInf>(Grid{1, kThreads, kSharedBytes}, stream, arguments);
}

void update_loss_scale(const LossScaleArguments& arguments, Stream stream) {
  launch<UpdateLossScale>(Grid{1, kWarp}, stream, arguments);
}

}  // namespace mezzo::kernels::MEZZO_CUDA
