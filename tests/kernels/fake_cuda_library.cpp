// A libmezzo_cuda.so that needs no CUDA: see cuda_library_test.cpp.
#include <ATen/ops/empty.h>

#include <cstdlib>

#include "encoder/block_ops.h"
#include "kernels/cuda_library.h"
#include "kernels/device_kernels.h"

namespace mezzo {
namespace {

const kernels::DeviceKernels kKernels = {};
const encoder::BlockOps kBlockOps = {};
CudaLibrary library = {.build = CudaLibrary::kBuild,
                       .kernels = &kKernels,
                       .why_no_image = [](int device) -> std::string { return device == 1 ? "it is of sm_61" : ""; },
                       .device_facts = nullptr,
                       .cross_entropy = nullptr,
                       .make_graphs = nullptr,
                       .block_ops = &kBlockOps,
                       .make_nccl_backend = nullptr};

}  // namespace
}  // namespace mezzo

[[gnu::visibility("default")]] const mezzo::CudaLibrary& mezzo_cuda_library(decltype(mezzo::SideStream::fork)* fork) {
  if (fork({at::empty({0})}).has_value()) {
    std::abort();
  }
  const char* const build = std::getenv("MEZZO_TEST_BUILD");
  mezzo::library.build = build != nullptr ? build : mezzo::CudaLibrary::kBuild;
  return mezzo::library;
}
