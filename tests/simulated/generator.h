#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

namespace mezzo::simulated {

/// Each device's own, as with CUDA: a seed and an offset, by which kernels draw.
const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);

/// The seed of the next kernel's numbers.
uint64_t next_seed(at::Generator generator);

/// The numbers of one kernel: a separate generator of the CPU. Its seed is the next offset of
/// `generator`, or by default of the current device's generator. A recorded kernel takes the offset
/// when it is replayed.
at::Generator for_one_kernel(const std::optional<at::Generator>& generator);

}  // namespace mezzo::simulated
