#ifdef __CUDACC__
#include <stdexcept>
#include <string>

#include "kernels/cuda/arguments.h"
#include "kernels/cuda/block.h"

namespace mezzo::kernels::MEZZO_CUDA {

void detail::check_launch(cudaError_t error) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("mezzo: a CUDA kernel could not be launched: ") + cudaGetErrorString(error));
  }
}

DeviceLimits device_limits() {
  int device = 0;
  detail::check_launch(cudaGetDevice(&device));
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    detail::check_launch(cudaDeviceGetAttribute(&value, which, device));
    return value;
  };
  return {attribute(cudaDevAttrMultiProcessorCount), attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)};
}

}  // namespace mezzo::kernels::MEZZO_CUDA
#endif
