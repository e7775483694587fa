#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "kernels/cuda_library.h"

namespace mezzo::distributed {

CudaLibrary::MakeNcclBackend make_nccl_backend;

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank,
                                                    int world_size,
                                                    const c10::Device& device,
                                                    std::chrono::milliseconds timeout) {
  // Else NCCL registers buffers of a collective when it is captured, for which all ranks must capture it at the same
  // time. Here one rank may record a step while another replays it.
  setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0);
  const auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  const auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, world_size, options);
  backend->setBoundDeviceId(device);
  return backend;
}

}  // namespace mezzo::distributed
