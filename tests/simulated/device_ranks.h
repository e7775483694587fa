#pragma once

#include <c10/core/DeviceGuard.h>

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "distributed/rank_threads.h"
#include "simulated/collectives.h"
#include "simulated/streams.h"

namespace mezzo::simulated {

/// Two ranks that are threads of this process, with a device each.
struct DeviceRanks {
  bool by_host = false;  ///< their collectives are as Gloo's; else as NCCL's
  std::chrono::milliseconds timeout = std::chrono::minutes(1);
  bool check_collectives = false;

  /// Calls `work` on each, its device current. Returns their errors, by rank; "" for none.
  std::vector<std::string> run(
      const std::function<void(distributed::ProcessGroup& group, c10::Device device)>& work) const {
    const auto meeting = meeting_of(2);
    const distributed::RankThreads ranks{.timeout = timeout, .check_collectives = check_collectives};
    return ranks.run([&](distributed::ProcessGroup& group) {
      const c10::Device device(kType, static_cast<c10::DeviceIndex>(group.rank()));
      const c10::DeviceGuard guard(device);
      group.c10d()->setBackend(kType, c10d::ProcessGroup::BackendType::CUSTOM,
                               by_host ? make_host_collectives(group.c10d()->getBackend(c10::kCPU))
                                       : make_collectives(meeting, group.rank(), group.size()));
      work(group, device);
    });
  }
};

}  // namespace mezzo::simulated
