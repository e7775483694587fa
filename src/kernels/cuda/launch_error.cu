#ifdef __CUDACC__
#include <stdexcept>
#include <string>

#include "kernels/cuda/block.h"

namespace mezzo::kernels::MEZZO_CUDA::detail {

void check_launch(cudaError_t error) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("mezzo: a CUDA kernel could not be launched: ") + cudaGetErrorString(error));
  }
}

}  // namespace mezzo::kernels::MEZZO_CUDA::detail
#endif
