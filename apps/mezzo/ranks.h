#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "mezzo/distributed/group/process_group.h"

namespace mezzo::app {

/// How long ranks wait for each other by default.
constexpr std::chrono::minutes kRanksTimeout(10);

/// Runs `work` together with the other processes that the launcher started, if there are any, and leaves them in good
/// order. Returns the status of `work`.
/// @param device  as in --device; without a number, each rank of a host takes a separate CUDA device, which is put in.
/// @param work  gets the group, or nullptr if this process is the only one.
int with_ranks(std::string& device,
               std::chrono::milliseconds timeout,
               const std::function<int(distributed::ProcessGroup*)>& work);

/// Whether this process prints and writes the joint results.
bool is_main(const distributed::ProcessGroup* group);

}  // namespace mezzo::app
