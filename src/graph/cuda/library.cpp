#include "amp/cuda/cross_entropy.h"
#include "graph/cuda/graphs.h"
#include "kernels/cuda/device_facts.h"
#include "kernels/cuda/operators.h"
#include "kernels/cuda_library.h"

namespace mezzo {

// Parts of modules above, which a build may lack.
#ifdef MEZZO_HAS_ENCODER
namespace encoder::cuda {
extern const BlockOps kBlockOps;
}
#endif
#ifdef USE_C10D_NCCL
namespace distributed {
CudaLibrary::MakeNcclBackend make_nccl_backend;
}
#endif

namespace {

decltype(SideStream::fork)* fork_in_process = nullptr;

constexpr CudaLibrary kLibrary = {
    .build = CudaLibrary::kBuild,
    .kernels = &kernels::cuda::kDeviceKernels,
    .why_no_image = &kernels::cuda::why_no_image,
    .device_facts = &kernels::cuda::device_facts,
    .cross_entropy = &cuda::kCrossEntropyKernels,
    .make_graphs = &cuda::make_graphs,
#ifdef MEZZO_HAS_ENCODER
    .block_ops = &encoder::cuda::kBlockOps,
#else
    .block_ops = nullptr,
#endif
#ifdef USE_C10D_NCCL
    .make_nccl_backend = &distributed::make_nccl_backend,
#else
    .make_nccl_backend = nullptr,
#endif
};

}  // namespace

/// Those who keep a SideStream are in libmezzo.so.
std::optional<c10::Stream> SideStream::fork(const std::vector<at::Tensor>& tensors) { return fork_in_process(tensors); }

}  // namespace mezzo

[[gnu::visibility("default")]] const mezzo::CudaLibrary& mezzo_cuda_library(decltype(mezzo::SideStream::fork)* fork) {
  mezzo::fork_in_process = fork;
  return mezzo::kLibrary;
}
