#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace mezzo::distributed {

/// Where this process stands among those that were started together.
struct RankEnvironment {
  int rank = 0;                           ///< in [0, world_size)
  int world_size = 1;                     ///< processes in all
  int local_rank = 0;                     ///< in [0, local_world_size)
  int local_world_size = 1;               ///< processes on this host
  std::string master_addr = "127.0.0.1";  ///< host of the store where ranks meet
  uint16_t master_port = 0;               ///< its port; 0, for one rank: any that is free
  bool launcher_hosts_store = false;      ///< else rank 0 does
  int restart_count = 0;                  ///< how often the launcher has started all ranks again
  std::string run_id;                     ///< tells apart runs that meet at one store; empty: the launcher has none
  std::string launcher;                   ///< for messages: "torchrun", "Slurm", "Open MPI", "MPICH", "PALS"

  /// Reads a variable; nullopt where it is not set.
  using Lookup = std::function<std::optional<std::string>(const char* name)>;

  /// What the launcher left in the environment. The first of these that is there wins:
  /// - torchrun and `mezzo launch`: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
  ///   MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE, TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_RUN_ID;
  /// - Open MPI: OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; PMIX_NAMESPACE;
  /// - MPICH and its kin: PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS; PMI_JOBID;
  /// - PALS of HPE Cray: PALS_RANKID, PMI_SIZE, PALS_LOCAL_RANKID, PALS_LOCAL_SIZE; PALS_APID;
  /// - Slurm's srun: SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE,
  ///   SLURM_JOB_ID, SLURM_STEP_ID, SLURM_STEP_NODELIST or SLURM_JOB_NODELIST, SLURM_RESTART_COUNT.
  ///
  /// MPI and Slurm name no meeting point. If MASTER_ADDR is not set, ranks of one host meet at
  /// 127.0.0.1, and Slurm's ranks of several hosts at the first host of the node list, where rank 0
  /// is. If MASTER_PORT is not set, the port is made from Slurm's job and step, MPI's job, or else,
  /// on one host, mpirun's process.
  /// @return nullopt where no launcher is known, or where it started one process; `.value_or(RankEnvironment())` is
  ///     the environment of a process alone
  /// @throws c10::ValueError  naming the variable that is missing or no sensible number; PMIX_RANK without
  ///     a number of ranks
  static std::optional<RankEnvironment> detect(const Lookup& lookup);
  /// From the environment of this process.
  static std::optional<RankEnvironment> detect();
};

/// A port for all ranks of a run, from 20000 to 29999, made from an id that they share. Another run may come to the
/// same one: at the store the id tells them apart.
uint16_t port_of_run(const std::string& id);

}  // namespace mezzo::distributed
