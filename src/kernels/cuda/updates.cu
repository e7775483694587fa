#include <limits>

#include "kernels/cuda/block.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/sum_of_squares.h"
#include "kernels/philox.h"
#include "kernels/random_key.h"

// Adam, SGD, RMSprop and LAMB over a list of parameters. A thread takes four elements at a time, as
// update_elements.h has it for one. With float32 parameters, moments and gradients and a half
// copy, Adam moves 30 bytes an element.

namespace mezzo::kernels::MEZZO_CUDA {
namespace {

constexpr int kThreads = 256;

MEZZO_DEVICE StepFactors factors_of(const DeviceFactors& factors, bool maximize) {
  const float inv_scale = factors.inv_scale != nullptr ? *factors.inv_scale : 1.0f;
  return {maximize ? -inv_scale : inv_scale, factors.clip != nullptr ? *factors.clip : 1.0f};
}

MEZZO_DEVICE double lr_of(const Parameter& p, const DeviceFactors& factors) {
  return factors.lr != nullptr ? *factors.lr * p.lr : p.lr;
}

MEZZO_DEVICE bool is_skipped(const DeviceFactors& factors) {
  return factors.found_inf != nullptr && *factors.found_inf != 0;
}

/// Rounds four values as reference::round_stochastically does, to numbers that bfloat16 holds.
MEZZO_DEVICE Four round_stochastically(const Four& values, int64_t first, const RandomKey& key) {
  const auto block = static_cast<uint64_t>(first) / 8;
  const auto words = Philox::generate(
      {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), key.step, key.site}, key.seed);
  const bool second = first % 8 != 0;
  const uint32_t pairs[2] = {second ? words[2] : words[0], second ? words[3] : words[1]};
  Four rounded;
  for (int i = 0; i < 4; ++i) {
    const uint32_t draw = i % 2 == 0 ? pairs[i / 2] & 0xFFFF : pairs[i / 2] >> 16, bits = bits_of(values.at[i]);
    const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    rounded.at[i] = float_of((is_nan ? bits | 0x400000 : bits + draw) & 0xFFFF0000);
  }
  return rounded;
}

/// Writes updated values into a parameter and its half copy.
template <class Settings>
MEZZO_DEVICE void store_param(
    const ParameterList<Settings>& list, const Parameter& p, int64_t first, int64_t end, const Four& values) {
  if (list.rounds_stochastically && p.param.element == Element::kBFloat16) {
    const RandomKey key{list.rounding_seed, static_cast<uint32_t>(*p.step), p.index};
    store_four<BFloat16>(p.param.data, first, end, round_stochastically(values, first, key));
  } else {
    store_four(p.param, first, end, values);
  }
  if (p.half_copy.data != nullptr) {
    store_four(p.half_copy, first, end, values);
  }
}

template <class Memory, class Settings>
void reads_numbers(Memory& memory, const ParameterList<Settings>& list) {
  for (int i = 0; i < list.count; ++i) {
    memory.reads(list.parameters[i].step, 1);
  }
  memory.reads(list.factors.found_inf, 1);
  memory.reads(list.constants, list.count);
}

template <class Memory>
void updates_param(Memory& memory, const Parameter& p) {
  memory.updates(p.param, p.size);
  memory.writes(p.half_copy, p.size);
}

MEZZO_DEVICE AdamConstants constants_of(const ParameterList<AdamSettings>& list, const Parameter& p) {
  return adam_constants(list.settings, lr_of(p, list.factors), p.weight_decay, static_cast<double>(*p.step),
                        factors_of(list.factors, list.settings.maximize), list.flushes_denormals);
}

MEZZO_DEVICE SgdConstants constants_of(const ParameterList<SgdSettings>& list, const Parameter& p) {
  return sgd_constants(list.settings, lr_of(p, list.factors), p.weight_decay, p.step != nullptr && *p.step == 1,
                       factors_of(list.factors, list.settings.maximize));
}

MEZZO_DEVICE RmspropConstants constants_of(const ParameterList<RmspropSettings>& list, const Parameter& p) {
  return rmsprop_constants(list.settings, lr_of(p, list.factors), p.weight_decay,
                           factors_of(list.factors, list.settings.maximize), list.flushes_denormals);
}

MEZZO_DEVICE LambConstants constants_of(const ParameterList<LambSettings>& list, const Parameter& p) {
  return lamb_constants(list.settings, p.weight_decay, static_cast<double>(*p.step),
                        factors_of(list.factors, list.settings.maximize));
}

/// Before an update: counts the steps, and computes the constants of each parameter once, as the powers in them take a
/// while.
template <class Settings>
struct PrepareUpdate {
  template <class Memory>
  static void uses(Memory& memory, const ParameterList<Settings>& list) {
    for (int i = 0; i < list.count; ++i) {
      memory.updates(list.parameters[i].step, 1);
    }
    memory.reads(list.factors.inv_scale, 1);
    memory.reads(list.factors.clip, 1);
    memory.reads(list.factors.found_inf, 1);
    memory.reads(list.factors.lr, 1);
    memory.writes(list.constants, list.count);
  }

  MEZZO_DEVICE static void run(const Block& block, const ParameterList<Settings>& list) {
    for (int i = block.thread(); i < list.count && !is_skipped(list.factors); i += block.threads()) {
      const Parameter& p = list.parameters[i];
      if (p.step != nullptr) {
        *p.step += 1;
      }
      list.constants[i] = constants_of(list, p);
    }
  }
};

/// Updates a parameter and its slots: element `i` of four.
template <int kSlots>
MEZZO_DEVICE void update_element(Four& param, const Four& gradient, Four* slots, int i, const AdamConstants& c) {
  adam_element(param.at[i], gradient.at[i], slots[0].at[i], slots[1].at[i], kSlots > 2 ? &slots[2].at[i] : nullptr, c);
}

template <int kSlots>
MEZZO_DEVICE void update_element(Four& param, const Four& gradient, Four* slots, int i, const SgdConstants& c) {
  sgd_element(param.at[i], gradient.at[i], kSlots > 0 ? &slots[0].at[i] : nullptr, c);
}

template <int kSlots>
MEZZO_DEVICE void update_element(Four& param, const Four& gradient, Four* slots, int i, const RmspropConstants& c) {
  const bool has_buffer = kSlots > 2 || (kSlots > 1 && c.momentum != 0);
  rmsprop_element(param.at[i], gradient.at[i], slots[0].at[i], has_buffer ? &slots[1].at[i] : nullptr,
                  kSlots > 2 || (kSlots > 1 && !has_buffer) ? &slots[kSlots - 1].at[i] : nullptr, c);
}

/// Updates whose elements do not depend on each other, with `kSlots` moments.
template <class Settings, int kSlots>
struct Elementwise {
  template <class Memory>
  static void uses(Memory& memory, const ParameterList<Settings>& list) {
    reads_numbers(memory, list);
    for (int i = 0; i < list.count; ++i) {
      const Parameter& p = list.parameters[i];
      updates_param(memory, p);
      memory.reads(p.gradient, p.size);
      for (int slot = 0; slot < kSlots; ++slot) {
        memory.updates(p.slots[slot], p.size);
      }
    }
  }

  MEZZO_DEVICE static void run(const Block& block, const ParameterList<Settings>& list) {
    if (is_skipped(list.factors)) {
      return;
    }
    const Chunk chunk = chunk_of(block, list, list.parameters);
    const Parameter& p = list.parameters[chunk.tensor];
    const typename Settings::Constants constants = list.constants[chunk.tensor];
    for_fours(block, chunk, [&](int64_t first) {
      Four param = load_four(p.param, first, chunk.end), slots[kSlots + 1];
      for (int slot = 0; slot < kSlots; ++slot) {
        slots[slot] = load_four<float>(p.slots[slot], first, chunk.end);
      }
      const Four gradient = load_four(p.gradient, first, chunk.end);
      for (int i = 0; i < 4; ++i) {
        update_element<kSlots>(param, gradient, slots, i, constants);
      }
      for (int slot = 0; slot < kSlots; ++slot) {
        store_four<float>(p.slots[slot], first, chunk.end, slots[slot]);
      }
      store_param(list, p, first, chunk.end, param);
    });
  }
};

/// Memory for two sums of each warp.
constexpr int kLambShared = 2 * kThreads / kWarp * int{sizeof(double)};

/// The first pass: moments, and a block's sums of squares.
struct LambMoments {
  template <class Memory>
  static void uses(Memory& memory, const ParameterList<LambSettings>& list) {
    reads_numbers(memory, list);
    for (int i = 0; i < list.count; ++i) {
      const Parameter& p = list.parameters[i];
      memory.reads(p.param, p.size);
      memory.reads(p.gradient, p.size);
      memory.updates(p.slots[0], p.size);
      memory.updates(p.slots[1], p.size);
    }
    memory.writes(list.norms, 2 * list.first_block[list.count]);
  }

  MEZZO_DEVICE static void run(const Block& block, const ParameterList<LambSettings>& list) {
    if (is_skipped(list.factors)) {
      return;
    }
    const Chunk chunk = chunk_of(block, list, list.parameters);
    const Parameter& p = list.parameters[chunk.tensor];
    const LambConstants constants = list.constants[chunk.tensor];
    double sums[2] = {};
    add_squares(block, chunk, sums, [&](int64_t first, Four* squared) {
      const Four gradient = load_four(p.gradient, first, chunk.end);
      Four mean = load_four<float>(p.slots[0], first, chunk.end),
           square = load_four<float>(p.slots[1], first, chunk.end);
      squared[0] = load_four(p.param, first, chunk.end);
      for (int i = 0; i < 4; ++i) {
        lamb_moments(gradient.at[i], mean.at[i], square.at[i], constants);
        const float moved = lamb_direction(squared[0].at[i], mean.at[i], square.at[i], constants);
        squared[1].at[i] = first + i < chunk.end ? moved : 0;  // 0 / 0 if eps is 0
      }
      store_four<float>(p.slots[0], first, chunk.end, mean);
      store_four<float>(p.slots[1], first, chunk.end, square);
    });
    auto* scratch = block.shared<double>();
    const double of_param = block_sum(block, sums[0], scratch);
    const double of_direction = block_sum(block, sums[1], scratch + kThreads / kWarp);
    if (block.thread() == 0) {
      list.norms[2 * block.index()] = of_param;
      list.norms[2 * block.index() + 1] = of_direction;
    }
  }
};

struct LambParams {
  template <class Memory>
  static void uses(Memory& memory, const ParameterList<LambSettings>& list) {
    reads_numbers(memory, list);
    for (int i = 0; i < list.count; ++i) {
      const Parameter& p = list.parameters[i];
      updates_param(memory, p);
      memory.reads(p.slots[0], p.size);
      memory.reads(p.slots[1], p.size);
    }
    memory.reads(list.factors.lr, 1);
    memory.reads(list.norms, 2 * list.first_block[list.count]);
  }

  MEZZO_DEVICE static void run(const Block& block, const ParameterList<LambSettings>& list) {
    if (is_skipped(list.factors)) {
      return;
    }
    const Chunk chunk = chunk_of(block, list, list.parameters);
    const Parameter& p = list.parameters[chunk.tensor];
    const LambConstants constants = list.constants[chunk.tensor];
    // Every block of a tensor adds its blocks' sums in the same order.
    double of_param = 0, of_direction = 0;
    for (int64_t i = list.first_block[chunk.tensor] + block.thread(); i < list.first_block[chunk.tensor + 1];
         i += block.threads()) {
      of_param += list.norms[2 * i];
      of_direction += list.norms[2 * i + 1];
    }
    auto* scratch = block.shared<double>();
    of_param = block_sum(block, of_param, scratch);
    of_direction = block_sum(block, of_direction, scratch + kThreads / kWarp);
    const auto step_size = static_cast<float>(lamb_trust(of_param, of_direction) * lr_of(p, list.factors));
    for_fours(block, chunk, [&](int64_t first) {
      Four param = load_four(p.param, first, chunk.end);
      const Four mean = load_four<float>(p.slots[0], first, chunk.end),
                 square = load_four<float>(p.slots[1], first, chunk.end);
      for (int i = 0; i < 4; ++i) {
        param.at[i] -= step_size * lamb_direction(param.at[i], mean.at[i], square.at[i], constants);
      }
      store_param(list, p, first, chunk.end, param);
    });
  }
};

template <int kSlots>
struct Adam : Elementwise<AdamSettings, kSlots> {};
template <int kSlots>
struct Sgd : Elementwise<SgdSettings, kSlots> {};
template <int kSlots>
struct Rmsprop : Elementwise<RmspropSettings, kSlots> {};

template <class Settings>
void prepare(const ParameterList<Settings>& list, Stream stream) {
  launch<PrepareUpdate<Settings>>(Grid{1, kThreads}, stream, list);
}

template <class Kernel, class Settings>
void launch_elementwise(const ParameterList<Settings>& list, Stream stream) {
  prepare(list, stream);
  launch_on_chunks<Kernel>(list, kThreads, /*shared_bytes=*/0, stream);
}

}  // namespace

void adam(const ParameterList<AdamSettings>& list, Stream stream) {
  list.settings.amsgrad ? launch_elementwise<Adam<3>>(list, stream) : launch_elementwise<Adam<2>>(list, stream);
}

void sgd(const ParameterList<SgdSettings>& list, Stream stream) {
  list.settings.momentum != 0 ? launch_elementwise<Sgd<1>>(list, stream) : launch_elementwise<Sgd<0>>(list, stream);
}

void rmsprop(const ParameterList<RmspropSettings>& list, Stream stream) {
  const int slots = 1 + (list.settings.momentum != 0 ? 1 : 0) + (list.settings.centered ? 1 : 0);
  const auto launch_one = slots == 1   ? &launch_elementwise<Rmsprop<1>, RmspropSettings>
                          : slots == 2 ? &launch_elementwise<Rmsprop<2>, RmspropSettings>
                                       : &launch_elementwise<Rmsprop<3>, RmspropSettings>;
  launch_one(list, stream);
}

void lamb(const ParameterList<LambSettings>& list, Stream stream) {
  prepare(list, stream);
  launch_on_chunks<LambMoments>(list, kThreads, kLambShared, stream);
  launch_on_chunks<LambParams>(list, kThreads, kLambShared, stream);
}

}  // namespace mezzo::kernels::MEZZO_CUDA
