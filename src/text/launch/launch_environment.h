#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mezzo/text/launch/launcher.h"

namespace mezzo::text {

/// The meeting point of one start's ranks, and the number of the start.
struct LaunchAttempt {
  std::string master_addr;
  int64_t master_port;
  int64_t restart_count;
  int64_t nproc;          // ranks of each node
  int64_t nnodes;         // that take part
  int64_t node_rank;      // among them
  std::string launch_id;  // of all attempts of one call
};

/// "NAME=value" for all of this process's environment with torchrun's variables
/// for one rank of the node.
std::vector<std::string> rank_environment(const LaunchOptions& options,
                                          const LaunchAttempt& attempt,
                                          int64_t local_rank);

}  // namespace mezzo::text
