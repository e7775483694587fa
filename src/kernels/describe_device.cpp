#include "kernels/describe_device.h"

#ifdef MEZZO_HAS_CUDA
#include <algorithm>
#include <cstdio>

#include "kernels/cuda/device_facts.h"
#endif

namespace mezzo::kernels {

std::string describe_device(c10::Device device) {
#ifdef MEZZO_HAS_CUDA
  if (device.is_cuda()) {
    const auto facts = cuda::device_facts(std::max<int>(device.index(), 0));
    char numbers[128];
    std::snprintf(numbers, sizeof numbers, ", compute capability %d.%d, %.1f GB, driver for CUDA %d.%d)", facts.major,
                  facts.minor, 1e-9 * static_cast<double>(facts.memory_bytes), facts.driver_version / 1000,
                  facts.driver_version % 1000 / 10);
    return device.str() + " (" + facts.name + numbers;
  }
#endif
  return device.str();
}

}  // namespace mezzo::kernels
