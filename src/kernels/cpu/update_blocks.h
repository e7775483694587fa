#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cpu/chunks.h"
#include "kernels/cpu/share_out.h"
#include "kernels/cpu/simd/element_kernels.h"
#include "kernels/cpu/tensor_spans.h"
#include "kernels/device_kernels.h"

namespace mezzo::kernels::cpu {

/// Elements that an update is computed on at a time: copies of them in float32 stay in the L1
/// cache. A multiple of 128, as round_stochastically wants.
constexpr int64_t kBlock = 1024;

/// Elements of a tensor from `begin` on as float32: in place, or converted into `scratch`.
inline const float* read_block(const at::Tensor& tensor, int64_t begin, int64_t count, float* scratch) {
  const ConstSpan block = read_span(tensor, begin);
  if (block.element == Element::kFloat) {
    return static_cast<const float*>(block.data);
  }
  element_kernels().to_float(block, scratch, count);
  return scratch;
}

inline void write_block(const float* values, const at::Tensor& tensor, int64_t begin, int64_t count) {
  element_kernels().from_float(values, write_span(tensor, begin), count);
}

/// Rounds updated values into a half parameter, and refreshes the half copy.
inline void store_block(const ParameterUpdate& update, const float* values, int64_t begin, int64_t count) {
  const at::Tensor& param = update.param;
  if (update.rounding_seed && param.scalar_type() == at::kBFloat16) {
    const auto step = static_cast<uint32_t>(*update.step.const_data_ptr<float>());
    element_kernels().round_stochastically(values, static_cast<uint16_t*>(write_span(param, begin).data), begin, count,
                                           {rounding_key_seed(update), step, update.index});
  } else if (param.scalar_type() != at::kFloat) {
    write_block(values, param, begin, count);
  }
  if (update.half_copy.defined()) {
    write_block(values, update.half_copy, begin, count);
  }
}

inline std::vector<Chunk> chunks_of(const ParameterUpdates& updates) {
  std::vector<int64_t> sizes;
  for (const ParameterUpdate& update : updates) {
    sizes.push_back(update.param.numel());
  }
  return cut_into_chunks(sizes);
}

/// Calls `task(i)` for every chunk i, in parallel.
template <class Task>
void for_each_chunk(const std::vector<Chunk>& chunks, Task&& task) {
  share_out(static_cast<int64_t>(chunks.size()), [&](const auto& next) {
    for (int64_t i = next(); i >= 0; i = next()) {
      task(static_cast<size_t>(i));
    }
  });
}

/// Calls `task(begin, count)` for every block of `chunk`.
template <class Task>
void for_each_block(const Chunk& chunk, Task&& task) {
  for (int64_t done = 0; done < chunk.count; done += kBlock) {
    task(chunk.begin + done, std::min(kBlock, chunk.count - done));
  }
}

/// Updates every parameter: `compute(tensor, param, gradient, begin, count)` changes `count` values
/// of `param` from element `begin` on.
template <class Compute>
void update_all(const ParameterUpdates& updates, Compute&& compute) {
  const auto chunks = chunks_of(updates);
  for_each_chunk(chunks, [&](size_t i) {
    const ParameterUpdate& update = updates[chunks[i].tensor];
    for_each_block(chunks[i], [&](int64_t begin, int64_t count) {
      alignas(64) float param_copy[kBlock], gradient_copy[kBlock];
      auto* param = const_cast<float*>(read_block(update.param, begin, count, param_copy));
      compute(chunks[i].tensor, param, read_block(update.gradient, begin, count, gradient_copy), begin, count);
      store_block(update, param, begin, count);
    });
  });
}

/// What updates have in common, read on the CPU, where nothing is waited for.
struct HostFactors {
  HostFactors(const GradientFactors& factors, bool maximize)
      : step{(maximize ? -1 : 1) * value(factors.inv_scale, 1), value(factors.clip, 1)},
        skip(value(factors.found_inf, 0) != 0),
        lr(factors.lr.defined() ? *factors.lr.const_data_ptr<double>() : 1) {}

  double lr_of(const ParameterUpdate& update) const { return lr * update.lr; }

  StepFactors step;
  bool skip;
  double lr;

 private:
  static float value(const at::Tensor& tensor, float otherwise) {
    return tensor.defined() ? *tensor.const_data_ptr<float>() : otherwise;
  }
};

/// Counts a step of `update` and returns its number, from 1.
inline double count_step(const ParameterUpdate& update) { return *update.step.mutable_data_ptr<float>() += 1; }

}  // namespace mezzo::kernels::cpu
