#ifdef __CUDACC__
#include <cuda_runtime.h>

#include <stdexcept>

#include "kernels/cuda/device_facts.h"

namespace mezzo::kernels::MEZZO_CUDA {
namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("CUDA cannot describe its device: ") + cudaGetErrorString(error));
  }
}

__global__ void probe() {}

}  // namespace

DeviceFacts device_facts(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device));
  int driver = 0;
  check(cudaDriverGetVersion(&driver));
  return {properties.name, properties.major, properties.minor, static_cast<int64_t>(properties.totalGlobalMem), driver};
}

std::string why_no_image(int device) {
  const DeviceFacts facts = device_facts(device);
  if (facts.driver_version < 12010) {  // lists of tensors are arguments of 32 KB
    return "the driver is for CUDA " + std::to_string(facts.driver_version / 1000) + "." +
           std::to_string(facts.driver_version % 1000 / 10) + ", mezzo needs one for CUDA 12.1 or newer";
  }
  int current = 0;
  check(cudaGetDevice(&current));
  check(cudaSetDevice(device));
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, probe);
  check(cudaSetDevice(current));
  switch (error) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidKernelImage:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidPtx:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled: break;
    default: check(error); return "";
  }
  cudaGetLastError();  // or LibTorch's next call would report it
  return "compute capability " + std::to_string(facts.major) + "." + std::to_string(facts.minor) + ", " +
         cudaGetErrorString(error);
}

}  // namespace mezzo::kernels::MEZZO_CUDA
#endif
