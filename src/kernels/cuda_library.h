#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/version.h>

#include <chrono>
#include <memory>
#include <string>

#include "memory/side_stream.h"
#include "mezzo/version.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace mezzo {

struct CrossEntropyKernels;
class DeviceGraphs;
namespace encoder {
struct BlockOps;
}
namespace kernels {
struct DeviceKernels;
namespace cuda {
struct DeviceFacts;
}
}  // namespace kernels

/// What libmezzo_cuda.so has for CUDA devices; nullptr for a part that this build lacks. That library is a separate
/// part of mezzo, so that libmezzo.so runs with a LibTorch without CUDA. It links LibTorch and CUDA's runtime alone.
struct CudaLibrary {
  const char* build;  ///< kBuild of the same build
  const kernels::DeviceKernels* kernels;
  std::string (*why_no_image)(int device);
  kernels::cuda::DeviceFacts (*device_facts)(int device);
  const CrossEntropyKernels* cross_entropy;
  std::unique_ptr<DeviceGraphs> (*make_graphs)(c10::Device device);
  const encoder::BlockOps* block_ops;
  /// For collectives on `device`, one rank a device.
  using MakeNcclBackend = c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>& store,
                                                            int rank,
                                                            int world_size,
                                                            const c10::Device& device,
                                                            std::chrono::milliseconds timeout);
  MakeNcclBackend* make_nccl_backend;

  static constexpr const char* kBuild =
      "mezzo " MEZZO_VERSION " for LibTorch " C10_STRINGIZE(TORCH_VERSION_MAJOR) "." C10_STRINGIZE(TORCH_VERSION_MINOR);
};

/// libmezzo_cuda.so of this process. The first call opens it if LibTorch has CUDA. The call warns if that fails, and
/// LibTorch's operations run on GPUs instead. Thread-safe.
/// @return nullptr if LibTorch has no CUDA, or the library cannot be opened
const CudaLibrary* cuda_library();

/// @param file  a path, or a name, which is looked for as mezzo's own libraries are
/// @throws c10::Error  if the file cannot be loaded, or is of another build of mezzo
const CudaLibrary& open_cuda_library(const char* file);

}  // namespace mezzo

/// What libmezzo_cuda.so exports. Its side streams come from `fork`, this process's SideStream::fork.
extern "C" const mezzo::CudaLibrary& mezzo_cuda_library(decltype(mezzo::SideStream::fork)* fork);
