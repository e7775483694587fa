#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace mezzo::distributed {

/// The position of this process among the processes that were started together.
struct RankEnvironment {
  int rank = 0;                           ///< in [0, world_size)
  int world_size = 1;                     ///< number of processes
  int local_rank = 0;                     ///< in [0, local_world_size)
  int local_world_size = 1;               ///< processes on this host
  std::string master_addr = "127.0.0.1";  ///< host of the store that connects the ranks
  uint16_t master_port = 0;               ///< its port; 0, for one rank: any free port
  bool launcher_hosts_store = false;      ///< false: rank 0 hosts the store
  int restart_count = 0;                  ///< number of restarts of all ranks by the launcher
  std::string run_id;                     ///< distinguishes runs at one store; empty: the launcher has none
  std::string launcher;                   ///< for messages: "torchrun", "Slurm", "Open MPI", "MPICH", "PALS"

  /// Reads a variable; nullopt if it is not set.
  using Lookup = std::function<std::optional<std::string>(const char* name)>;

  /// Reads the variables of the launcher. The first of these launchers that is found is used:
  /// * `torchrun` and `mezzo launch`: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
  ///   MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE, TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_RUN_ID.
  /// * Open MPI: OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; PMIX_NAMESPACE.
  /// * MPICH and its relatives: PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS; PMI_JOBID.
  /// * PALS of HPE Cray: PALS_RANKID, PMI_SIZE, PALS_LOCAL_RANKID, PALS_LOCAL_SIZE; PALS_APID.
  /// * Slurm's srun: SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE,
  ///   SLURM_JOB_ID, SLURM_STEP_ID, SLURM_STEP_NODELIST or SLURM_JOB_NODELIST, SLURM_RESTART_COUNT.
  ///
  /// MPI and Slurm define no address of the store. If MASTER_ADDR is not set, ranks of one host use
  /// 127.0.0.1. Slurm's ranks of several hosts use the first host of the node list, which runs rank
  /// 0.
  ///
  /// If MASTER_PORT is not set, the port is computed from Slurm's job and step, or from MPI's job.
  /// Otherwise, on one host, it is computed from the process id of mpirun.
  /// @return nullopt if no launcher is found, or it started one process;
  ///     `.value_or(RankEnvironment())` is the environment of a single process
  /// @throws c10::ValueError  naming the variable that is missing or not a valid number; for
  ///     PMIX_RANK without a number of ranks
  static std::optional<RankEnvironment> detect(const Lookup& lookup);
  /// Reads the environment of this process.
  static std::optional<RankEnvironment> detect();
};

/// A port for all ranks of a run, from 20000 to 29999, computed from a shared id. Another run may
/// get the same port: the store distinguishes runs by the id.
uint16_t port_of_run(const std::string& id);

}  // namespace mezzo::distributed
