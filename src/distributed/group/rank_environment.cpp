#include "mezzo/distributed/group/rank_environment.h"

#include <c10/util/ConstexprCrc.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>

namespace mezzo::distributed {
namespace {

using Lookup = RankEnvironment::Lookup;

int64_t parse_number(const char* name, const std::string& text, int64_t smallest, int64_t largest) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  TORCH_CHECK_VALUE(error == std::errc() && end == text.data() + text.size() && value >= smallest && value <= largest,
                    "environment variable ", name, " is '", text, "', not a whole number from ", smallest, " to ",
                    largest);
  return value;
}

int64_t number(const Lookup& lookup, const char* name, int64_t smallest, int64_t largest) {
  const auto text = lookup(name);
  TORCH_CHECK_VALUE(
      text, "environment variable ", name,
      " is not set, but other variables of the same launcher are; start all ranks with one launcher, or without");
  return parse_number(name, *text, smallest, largest);
}

struct RankVariables {
  const char *launcher, *rank, *world_size, *local_rank, *local_world_size;
};

constexpr int64_t kMostRanks = 1 << 20;
constexpr const char* kTorchrun = "torchrun";

RankEnvironment read_ranks(const Lookup& lookup, const RankVariables& names) {
  RankEnvironment environment;
  environment.launcher = names.launcher;
  environment.world_size = static_cast<int>(number(lookup, names.world_size, 1, kMostRanks));
  environment.rank = static_cast<int>(number(lookup, names.rank, 0, environment.world_size - 1));
  environment.local_world_size = static_cast<int>(number(lookup, names.local_world_size, 1, environment.world_size));
  environment.local_rank = static_cast<int>(number(lookup, names.local_rank, 0, environment.local_world_size - 1));
  return environment;
}

/// Fills in where ranks meet: as said by MASTER_ADDR and MASTER_PORT, or
/// else as good as can be known.
void choose_meeting_point(const Lookup& lookup,
                          RankEnvironment& environment,
                          const std::optional<std::string>& known_addr) {
  const bool one_host = environment.local_world_size == environment.world_size;
  if (const auto addr = lookup("MASTER_ADDR")) {
    environment.master_addr = *addr;
  } else {
    TORCH_CHECK_VALUE(one_host || known_addr, environment.launcher,
                      " started ranks on several hosts: set MASTER_ADDR to the host of rank 0 on all of them, and "
                      "MASTER_PORT to a free port of that host");
    environment.master_addr = one_host ? "127.0.0.1" : *known_addr;
  }
  const auto port = lookup("MASTER_PORT");
  const bool is_made_from_id = environment.launcher != kTorchrun && !environment.run_id.empty();
  TORCH_CHECK_VALUE(port || is_made_from_id,
                    "environment variable MASTER_PORT is not set: set it, for all ranks, to a free port of ",
                    environment.master_addr);
  environment.master_port =
      port ? static_cast<uint16_t>(parse_number("MASTER_PORT", *port, 1, std::numeric_limits<uint16_t>::max()))
           : port_of_run(environment.run_id);
}

/// The job's name, where MPI tells it. On one host, mpirun itself or its daemon
/// is the parent of all ranks.
std::string mpi_run_id(const Lookup& lookup, const char* name, const RankEnvironment& environment) {
  const bool one_host = environment.local_world_size == environment.world_size;
  return lookup(name).value_or(one_host ? std::to_string(getppid()) : "");
}

/// Open MPI, MPICH and its kin, PALS.
RankEnvironment from_mpi(const Lookup& lookup, const RankVariables& names, const char* job) {
  auto environment = read_ranks(lookup, names);
  environment.run_id = mpi_run_id(lookup, job, environment);
  choose_meeting_point(lookup, environment, std::nullopt);
  return environment;
}

/// Takes a number above 0 off the front of `text`.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 1) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

bool take(std::string_view& text, std::string_view word) {
  const bool found = text.starts_with(word);
  text.remove_prefix(found ? word.size() : 0);
  return found;
}

/// "4(x2),3" has 4 tasks on nodes 0 and 1 and 3 on node 2. nullopt if that cannot be
/// read, or ends before `node`.
std::optional<int64_t> slurm_tasks_on_node(std::string_view counts, int64_t node) {
  do {
    const auto tasks = take_number(counts);
    const bool repeated = tasks && take(counts, "(x");
    const auto repeats = repeated ? take_number(counts) : 1;
    if (!tasks || !repeats || (repeated && !take(counts, ")"))) {
      return std::nullopt;
    }
    if (node < *repeats) {
      return tasks;
    }
    node -= *repeats;
  } while (take(counts, ","));
  return std::nullopt;
}

/// The first host of a list as Slurm writes it: "tux007" of "tux[007-011,020],other". nullopt if it cannot be read.
std::optional<std::string> first_slurm_host(std::string_view list) {
  constexpr std::string_view kDigits = "0123456789";
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      const auto text = list.substr(0, list.find_first_of("[,"));
      host += text;
      list.remove_prefix(text.size());
      continue;
    }
    const auto number = list.substr(1, list.find_first_not_of(kDigits, 1) - 1);
    const size_t end = list.find(']');
    if (number.empty() || end == std::string_view::npos) {
      return std::nullopt;
    }
    host += number;  // with its leading zeros
    list.remove_prefix(end + 1);
  }
  return host.empty() ? std::nullopt : std::optional(host);
}

/// Slurm numbers the tasks of a step from its first node on.
std::optional<std::string> slurm_host_of_rank_0(const Lookup& lookup) {
  const auto of_step = lookup("SLURM_STEP_NODELIST");
  return first_slurm_host(of_step ? *of_step : lookup("SLURM_JOB_NODELIST").value_or(""));
}

int restarts(const Lookup& lookup, const char* name) {
  return lookup(name) ? static_cast<int>(number(lookup, name, 0, std::numeric_limits<int>::max())) : 0;
}

/// One process a host where nothing is said of local ranks, as on Kubernetes.
RankEnvironment from_torchrun(const Lookup& lookup) {
  const bool knows_local = lookup("LOCAL_RANK") || lookup("LOCAL_WORLD_SIZE");
  const auto with_local = [&](const char* name) -> std::optional<std::string> {
    if (!knows_local && std::string_view(name) == "LOCAL_RANK") return "0";
    if (!knows_local && std::string_view(name) == "LOCAL_WORLD_SIZE") return "1";
    return lookup(name);
  };
  auto environment = read_ranks(with_local, {kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  if (environment.world_size == 1) {
    return environment;
  }
  environment.run_id = lookup("TORCHELASTIC_RUN_ID").value_or("");
  choose_meeting_point(lookup, environment, std::nullopt);
  environment.launcher_hosts_store = lookup("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  environment.restart_count = restarts(lookup, "TORCHELASTIC_RESTART_COUNT");
  return environment;
}

RankEnvironment from_slurm(const Lookup& lookup) {
  RankEnvironment environment;
  environment.launcher = "Slurm";
  environment.world_size = static_cast<int>(number(lookup, "SLURM_STEP_NUM_TASKS", 1, kMostRanks));
  environment.rank = static_cast<int>(number(lookup, "SLURM_PROCID", 0, environment.world_size - 1));
  const int64_t node = number(lookup, "SLURM_NODEID", 0, kMostRanks);
  const auto counts = lookup("SLURM_STEP_TASKS_PER_NODE").value_or(std::to_string(environment.world_size));
  const auto tasks = slurm_tasks_on_node(counts, node);
  TORCH_CHECK_VALUE(tasks, "environment variable SLURM_STEP_TASKS_PER_NODE is '", counts,
                    "', which has no entry for node ", node);
  TORCH_CHECK_VALUE(*tasks <= environment.world_size, "environment variable SLURM_STEP_TASKS_PER_NODE is '", counts,
                    "': node ", node, " has more tasks than SLURM_STEP_NUM_TASKS, ", environment.world_size);
  environment.local_world_size = static_cast<int>(*tasks);
  environment.local_rank = static_cast<int>(number(lookup, "SLURM_LOCALID", 0, environment.local_world_size - 1));
  environment.run_id = std::to_string(number(lookup, "SLURM_JOB_ID", 0, std::numeric_limits<int64_t>::max()));
  if (const auto step = lookup("SLURM_STEP_ID")) {
    environment.run_id += "." + *step;
  }
  environment.restart_count = restarts(lookup, "SLURM_RESTART_COUNT");  // of a job that was requeued
  choose_meeting_point(lookup, environment, slurm_host_of_rank_0(lookup));
  return environment;
}

}  // namespace

uint16_t port_of_run(const std::string& id) {
  return static_cast<uint16_t>(20000 + c10::util::crc64(id.data(), id.size()).checksum() % 10000);
}

std::optional<RankEnvironment> RankEnvironment::detect(const Lookup& lookup) {
  RankEnvironment environment;
  if (lookup("WORLD_SIZE") && lookup("RANK")) {
    environment = from_torchrun(lookup);
  } else if (lookup("OMPI_COMM_WORLD_SIZE")) {
    environment = from_mpi(lookup,
                           {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE"},
                           "PMIX_NAMESPACE");
  } else if (lookup("PMI_SIZE") && lookup("MPI_LOCALNRANKS")) {
    environment =
        from_mpi(lookup, {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}, "PMI_JOBID");
  } else if (lookup("PALS_RANKID")) {
    environment =
        from_mpi(lookup, {"PALS", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"}, "PALS_APID");
  } else if (lookup("SLURM_PROCID") && lookup("SLURM_STEP_NUM_TASKS")) {
    environment = from_slurm(lookup);
  } else if (lookup("PMIX_RANK")) {
    TORCH_CHECK_VALUE(
        false,
        "environment variable PMIX_RANK is set, but the number of ranks is not. Start ranks with Open MPI's "
        "mpirun or with srun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
  } else if (lookup("WORLD_SIZE")) {
    const auto size = number(lookup, "WORLD_SIZE", 1, kMostRanks);
    TORCH_CHECK_VALUE(size == 1, "environment variable WORLD_SIZE is '", size,
                      "', but RANK is not set; set both or none");
  }
  return environment.world_size > 1 ? std::optional(environment) : std::nullopt;
}

std::optional<RankEnvironment> RankEnvironment::detect() {
  return detect([](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  });
}

}  // namespace mezzo::distributed
