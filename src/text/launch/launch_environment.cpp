#include "text/launch/launch_environment.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string_view>

namespace mezzo::text {
namespace {

/// Processors that this process may run on.
int64_t processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

std::map<std::string, std::string> own_environment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (const size_t equals = text.find('='); equals != std::string_view::npos) {
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return variables;
}

}  // namespace

std::vector<std::string> rank_environment(const LaunchOptions& options,
                                          const LaunchAttempt& attempt,
                                          int64_t local_rank) {
  auto variables = own_environment();
  const auto set = [&](const char* name, int64_t value) { variables[name] = std::to_string(value); };
  const int64_t rank = attempt.node_rank * attempt.nproc + local_rank;
  const int64_t world_size = attempt.nnodes * attempt.nproc;
  set("RANK", rank);
  set("LOCAL_RANK", local_rank);
  set("GROUP_RANK", attempt.node_rank);
  set("ROLE_RANK", rank);
  set("WORLD_SIZE", world_size);
  set("LOCAL_WORLD_SIZE", attempt.nproc);
  set("GROUP_WORLD_SIZE", attempt.nnodes);
  set("ROLE_WORLD_SIZE", world_size);
  variables["ROLE_NAME"] = "default";
  variables["MASTER_ADDR"] = attempt.master_addr;
  set("MASTER_PORT", attempt.master_port);
  set("TORCHELASTIC_RESTART_COUNT", attempt.restart_count);
  set("TORCHELASTIC_MAX_RESTARTS", options.max_restarts());
  variables["TORCHELASTIC_RUN_ID"] = "none";
  variables["MEZZO_LAUNCH_ID"] = attempt.launch_id;  // by which a run that starts again knows its earlier start's work
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";  // the launcher hosts the store, not rank 0
  variables.erase("TORCHELASTIC_ERROR_FILE");          // the launcher's own
  variables.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  variables.emplace("OMP_NUM_THREADS",
                    std::to_string(std::max<int64_t>(
                        (options.processors() > 0 ? options.processors() : processors()) / attempt.nproc, 1)));

  std::vector<std::string> result;
  result.reserve(variables.size());
  for (const auto& [name, value] : variables) {
    result.push_back(name + "=" + value);
  }
  return result;
}

}  // namespace mezzo::text
