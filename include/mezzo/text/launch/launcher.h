#pragma once

#include "mezzo/cpp20.h"

#include <torch/arg.h>

#include <cstdint>
#include <string>
#include <vector>

namespace mezzo::text {

/// What to start, and how often.
struct LaunchOptions {
  explicit LaunchOptions(std::vector<std::string> command) : command_(std::move(command)) {}

  /// The program and its arguments, the same for every rank. Without a slash
  /// it is looked for in PATH.
  TORCH_ARG(std::vector<std::string>, command);
  /// What restarts run instead, such as the same command with `--resume auto`; empty: `command`.
  TORCH_ARG(std::vector<std::string>, restart_command);
  /// Ranks on this node.
  TORCH_ARG(int64_t, nproc) = 1;
  /// Nodes in all, each with a launcher of its own and the same `nproc`; `node_rank` counts from 0.
  TORCH_ARG(int64_t, nnodes) = 1;
  TORCH_ARG(int64_t, node_rank) = 0;
  /// With `max_restarts`: restarts go on without nodes that are lost, with this many at least. 0: `nnodes`. Node 0 must
  /// stay.
  TORCH_ARG(int64_t, min_nnodes) = 0;
  /// After so long without a word a node counts as lost.
  TORCH_ARG(double, node_timeout_seconds) = 15;
  /// How long the first start waits for all nodes. Then it takes place with `min_nnodes` of them at least, or not at
  /// all.
  TORCH_ARG(double, join_seconds) = 600;
  /// Where ranks meet: a name or address of node 0 that every node can reach, and a port that
  /// is free there. On a single node neither is needed: a free port of 127.0.0.1 is chosen.
  /// On several nodes the launchers meet there, and the ranks of restart k at `master_port` + 1 + k, so that no rank
  /// can mistake an earlier life of the run for its own.
  TORCH_ARG(std::string, master_addr);
  TORCH_ARG(int64_t, master_port) = 0;
  /// How often all ranks are started again after one has failed.
  TORCH_ARG(int64_t, max_restarts) = 0;
  /// With `max_restarts`: ranks are started again fewer by those that failed, but for at least so many, numbered from
  /// 0. 0: never fewer. On a single node alone.
  TORCH_ARG(int64_t, min_nproc) = 0;
  /// Exit statuses that another try cannot mend, such as the one for wrong usage.
  TORCH_ARG(std::vector<int>, final_statuses) = { 2 };
  /// That the ranks of this node divide among each other (`OMP_NUM_THREADS`, unless it is set); 0: those that this
  /// process may run on.
  TORCH_ARG(int64_t, processors) = 0;
  /// How long ranks may take to end after SIGINT or SIGTERM was passed on to them,
  /// before SIGKILL ends them.
  TORCH_ARG(double, grace_seconds) = 30;
  /// The same, after another rank has failed.
  TORCH_ARG(double, failure_grace_seconds) = 5;
  /// What the launcher's own lines begin with.
  TORCH_ARG(std::string, name) = "launch";
};

/// Starts `nproc` processes that find each other by torchrun's environment (`RANK`, `WORLD_SIZE`,
/// `MASTER_ADDR` …), and waits for them. docs/launch.md says what ranks find, what is printed, and
/// how a run ends. When one rank fails, the others are ended, and a line on stderr says which failed
/// and why. No process of a rank outlives this call, nor the death of this process by SIGKILL.
///
/// Installs signal handlers for the time of the call and puts back those it found. One call at a
/// time in a process. The thread must outlive the ranks: Linux ends them when the thread that
/// started them ends.
/// @return 0 when every rank ended with 0, or 1 if output was lost then; else the status of the
///     first rank to fail, or of the signal that ended the run, as a shell counts it: 128 + N for
///     signal N
/// @throws c10::ValueError  for options out of range; nothing was started then
/// @throws c10::Error  when the command cannot be run or the port is in use; what was started has
///     ended
/// @see torchrun. Differs: nodes have fixed numbers, and node 0 must stay.
int launch(const LaunchOptions& options);

}  // namespace mezzo::text
