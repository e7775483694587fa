#pragma once

#include "mezzo/cpp20.h"

#include <torch/arg.h>

#include <cstdint>
#include <string>
#include <vector>

namespace mezzo::text {

/// The command of `mezzo launch`, and its restarts.
struct LaunchOptions {
  /// @param command  the program and its arguments
  explicit LaunchOptions(std::vector<std::string> command) : command_(std::move(command)) {}

  /// The program and its arguments, equal for every rank. Without a slash it is searched in PATH.
  TORCH_ARG(std::vector<std::string>, command);
  /// The command of restarts, such as the same command with `--resume auto`; empty: `command`.
  TORCH_ARG(std::vector<std::string>, restart_command);
  /// The number of ranks on this node.
  TORCH_ARG(int64_t, nproc) = 1;
  /// The number of nodes. Each has a separate launcher and the same `nproc`.
  TORCH_ARG(int64_t, nnodes) = 1;
  /// The number of this node, from 0.
  TORCH_ARG(int64_t, node_rank) = 0;
  /// With `max_restarts`: restarts continue without lost nodes, with at least this number of nodes.
  /// 0: `nnodes`. Node 0 must stay.
  TORCH_ARG(int64_t, min_nnodes) = 0;
  /// The time without a message after which a node counts as lost.
  TORCH_ARG(double, node_timeout_seconds) = 15;
  /// The time that the first start waits for all nodes. Afterwards it starts if at least
  /// `min_nnodes` nodes are there, and fails otherwise.
  TORCH_ARG(double, join_seconds) = 600;
  /// The host of the ranks' store: a name or address of node 0 that every node can reach, and a
  /// port that is free there. On a single node neither is needed: a free port of 127.0.0.1 is
  /// chosen.
  ///
  /// On several nodes the launchers connect at `master_port`, and the ranks of restart k at
  /// `master_port` + 1 + k. So a rank cannot connect to an earlier start of the run.
  TORCH_ARG(std::string, master_addr);
  /// The port of the launchers' store.
  TORCH_ARG(int64_t, master_port) = 0;
  /// The maximum number of restarts of all ranks after a failure.
  TORCH_ARG(int64_t, max_restarts) = 0;
  /// With `max_restarts`: a restart omits failed ranks, but keeps at least this number of ranks,
  /// numbered from 0. 0: never omits ranks. Single node only.
  TORCH_ARG(int64_t, min_nproc) = 0;
  /// Exit statuses that prevent a restart, such as the status for wrong usage.
  TORCH_ARG(std::vector<int>, final_statuses) = { 2 };
  /// The number of processors that this node's ranks share (`OMP_NUM_THREADS`, unless it is set).
  /// 0: all processors that this process may use.
  TORCH_ARG(int64_t, processors) = 0;
  /// The time that ranks have to end after SIGINT or SIGTERM, before SIGKILL ends them.
  TORCH_ARG(double, grace_seconds) = 30;
  /// The same after the failure of another rank.
  TORCH_ARG(double, failure_grace_seconds) = 5;
  /// The prefix of the launcher's lines.
  TORCH_ARG(std::string, name) = "launch";
};

/// Starts `nproc` processes that find each other by torchrun's environment (`RANK`, `WORLD_SIZE`,
/// `MASTER_ADDR` …), and waits for them. See docs/launch.md for the environment of ranks, the
/// output, and the end of a run. If one rank fails, the others are ended, and a line on stderr
/// names the failed rank and the cause.
///
/// No process of a rank outlives this call or this process, even if SIGKILL ends it. Installs
/// signal handlers during the call and then restores the previous handlers. One call at a time in a
/// process. The calling thread must outlive the ranks: Linux ends them when this thread ends.
/// @return 0 if every rank ended with 0, or 1 if output was lost then. Else the status of the first
///     failed rank, or 128 + N if signal N ended the run.
/// @throws c10::ValueError  for options out of range; nothing was started then
/// @throws c10::Error  if the command cannot be run or the port is in use; all started processes
///     have ended then
/// @see torchrun. Differs: nodes have fixed numbers, and node 0 must stay.
int launch(const LaunchOptions& options);

}  // namespace mezzo::text
