#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "mezzo/distributed/group/rank_environment.h"

namespace mezzo::distributed {

/// @throws c10::ValueError  where collectives on `device` are not possible in this build.
void check_backend(const c10::Device& device);

/// Gives `group` Gloo for CPU tensors and, where `device` is a CUDA device, NCCL for those
/// on it. Waits for all ranks.
void add_backends(c10d::ProcessGroup& group,
                  const c10::intrusive_ptr<c10d::Store>& store,
                  const RankEnvironment& environment,
                  const c10::Device& device,
                  std::chrono::milliseconds timeout);

}  // namespace mezzo::distributed
