#ifdef __CUDACC__
#include <cuda_runtime.h>

#include <stdexcept>

#include "kernels/cuda/device_facts.h"

namespace mezzo::kernels::MEZZO_CUDA {
namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("CUDA does not tell about its device: ") + cudaGetErrorString(error));
  }
}

}  // namespace

DeviceFacts device_facts(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device));
  int driver = 0;
  check(cudaDriverGetVersion(&driver));
  return {properties.name, properties.major, properties.minor, static_cast<int64_t>(properties.totalGlobalMem), driver};
}

}  // namespace mezzo::kernels::MEZZO_CUDA
#endif
