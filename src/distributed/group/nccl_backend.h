#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace mezzo::distributed {

/// Whether this build has NCCL: LibTorch is a CUDA build, and nccl.h was found beside it.
bool has_nccl();

/// For collectives on `device`, one rank a device.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank,
                                                    int world_size,
                                                    const c10::Device& device,
                                                    std::chrono::milliseconds timeout);

}  // namespace mezzo::distributed
