#include "distributed/group/nccl_backend.h"

#include <c10/util/Exception.h>

#include <cstdlib>

#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace mezzo::distributed {

#ifdef USE_C10D_NCCL

bool has_nccl() { return true; }

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

#else

bool has_nccl() { return false; }

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const c10::intrusive_ptr<c10d::Store>&, int, int, const c10::Device&, std::chrono::milliseconds) {
  TORCH_INTERNAL_ASSERT(false, "check_backend() comes first");
}

#endif

}  // namespace mezzo::distributed
