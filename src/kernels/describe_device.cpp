#include "kernels/describe_device.h"

#include <algorithm>
#include <cstdio>

#include "kernels/cuda/device_facts.h"
#include "kernels/cuda_library.h"

namespace mezzo::kernels {

std::string describe_device(c10::Device device) {
  if (const CudaLibrary* const cuda = device.is_cuda() ? cuda_library() : nullptr) {
    const auto facts = cuda->device_facts(std::max<int>(device.index(), 0));
    char numbers[128];
    std::snprintf(numbers, sizeof numbers, ", compute capability %d.%d, %.1f GB, driver for CUDA %d.%d)", facts.major,
                  facts.minor, 1e-9 * static_cast<double>(facts.memory_bytes), facts.driver_version / 1000,
                  facts.driver_version % 1000 / 10);
    return device.str() + " (" + facts.name + numbers;
  }
  return device.str();
}

}  // namespace mezzo::kernels
