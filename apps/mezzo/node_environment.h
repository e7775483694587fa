#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace mezzo::app {

/// This node's place among the nodes that an engine gave to a job: defaults of mezzo launch's flags.
struct NodeEnvironment {
  std::optional<int64_t> nproc;
  std::optional<int64_t> nnodes, node_rank;
  int64_t min_nnodes = 0;
  std::string master;  ///< HOST:PORT; empty for one node

  /// The first of these that is there wins:
  /// - Kubeflow: PET_NNODES (N or MIN:MAX), PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT;
  /// - SkyPilot: SKYPILOT_NUM_NODES, SKYPILOT_NODE_RANK, SKYPILOT_NODE_IPS, SKYPILOT_NUM_GPUS_PER_NODE,
  ///   SKYPILOT_TASK_ID;
  /// - one task per node of whatever distributed::RankEnvironment knows: Slurm, MPI, RANK and WORLD_SIZE.
  /// @throws c10::ValueError  that names a variable that is missing or no sensible number, or says that there are
  ///     several launchers on a host
  static NodeEnvironment detect();
};

}  // namespace mezzo::app
