#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "mezzo/distributed/group/process_group.h"

namespace mezzo::distributed {

/// Whether libmezzo_cuda.so is there and has NCCL.
bool has_nccl();

/// @throws c10::ValueError  if collectives on `device` are not possible in this build.
void check_backend(const c10::Device& device);

/// Gives `group` Gloo for CPU tensors and, where `device` is a CUDA device, NCCL for those
/// on it. Waits for all ranks.
void add_backends(c10d::ProcessGroup& group,
                  const c10::intrusive_ptr<c10d::Store>& store,
                  const RankEnvironment& environment,
                  const c10::Device& device,
                  std::chrono::milliseconds timeout);

/// Runs `collective`, which works on memory of such a device, in the group's guard: now, or in each replay of the step
/// that this thread records. May be called after the return: it must not refer to variables of the caller.
void run_collective(ProcessGroup& group, c10::DeviceType type, const std::function<void()>& collective);

/// Whether collectives on devices of this type only queue work on streams, so that they can be part of a graph.
bool can_be_captured(c10d::ProcessGroup& group, c10::DeviceType type);

}  // namespace mezzo::distributed
