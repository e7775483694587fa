#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mezzo::kernels::reference {

/// The words of the Philox blocks 0 ... blocks - 1 in order, as int64 [4 * blocks] on the device of `step`. The counter
/// is {block low, block high, step, site}, with key seed. `step`: 0-dim.
at::Tensor random_words(int64_t blocks, const at::Tensor& step, uint64_t seed, uint32_t site);

/// The words of the blocks {low, high, step, site}: the broadcast shape of `low` and `high`, and 4.
/// All int64 tensors that hold 32-bit words, on one device.
at::Tensor random_words(
    const at::Tensor& low, const at::Tensor& high, const at::Tensor& step, uint64_t seed, uint32_t site);

}  // namespace mezzo::kernels::reference
