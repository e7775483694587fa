#include "node_environment.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "command_line.h"
#include "mezzo/distributed/group/rank_environment.h"
#include "mezzo/text/machine/threads.h"
#include "mezzo/text/models/precision.h"

namespace mezzo::app {
namespace {

constexpr const char* kPort = "29500";  // torchrun's

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? std::optional<std::string>(value) : std::nullopt;
}

std::optional<int64_t> count(const char* name, const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  const auto value = parse_number<int64_t>(*text);
  TORCH_CHECK_VALUE(value && *value >= 0, "environment variable ", name, " is '", *text, "', not a count");
  return value;
}

std::string with_port(const std::string& host, const std::string& port) {
  return fmt::format("{}:{}", host.find(':') == std::string::npos ? host : '[' + host + ']', port);
}

int64_t gpus_or_one() { return std::max<int64_t>(text::cuda_device_count(), 1); }

NodeEnvironment from_torchelastic() {
  NodeEnvironment found;
  std::string nodes = variable("PET_NNODES").value_or("1");
  if (const size_t colon = nodes.find(':'); colon != std::string::npos) {
    found.min_nnodes = *count("PET_NNODES", nodes.substr(0, colon));
    nodes.erase(0, colon + 1);
  }
  found.nnodes = count("PET_NNODES", nodes);
  found.node_rank = count("PET_NODE_RANK", variable("PET_NODE_RANK"));
  const auto nproc = variable("PET_NPROC_PER_NODE");
  found.nproc = nproc == "auto" || nproc == "gpu" ? gpus_or_one()
                : nproc == "cpu"                  ? text::usable_processors()
                                                  : count("PET_NPROC_PER_NODE", nproc);
  if (const auto host = variable("PET_MASTER_ADDR"); host && found.nnodes > 1) {
    found.master = with_port(*host, variable("PET_MASTER_PORT").value_or(kPort));
  }
  return found;
}

NodeEnvironment from_skypilot() {
  NodeEnvironment found;
  found.nnodes = count("SKYPILOT_NUM_NODES", variable("SKYPILOT_NUM_NODES"));
  found.node_rank = count("SKYPILOT_NODE_RANK", variable("SKYPILOT_NODE_RANK"));
  const auto gpus = count("SKYPILOT_NUM_GPUS_PER_NODE", variable("SKYPILOT_NUM_GPUS_PER_NODE"));
  if (gpus) found.nproc = std::max<int64_t>(*gpus, 1);
  if (const auto hosts = variable("SKYPILOT_NODE_IPS"); hosts && found.nnodes > 1) {
    const auto task = variable("SKYPILOT_TASK_ID").value_or("");  // a node may have several
    found.master = with_port(hosts->substr(0, hosts->find('\n')), fmt::format("{}", distributed::port_of_run(task)));
  }
  return found;
}

NodeEnvironment from_tasks() {
  const auto task = distributed::RankEnvironment::detect();
  if (!task) return {};
  TORCH_CHECK_VALUE(task->local_world_size == 1, task->launcher, " started mezzo launch ", task->local_world_size,
                    " times on this host. Start it once on each host, with --nproc ", task->local_world_size,
                    ". Or start the command itself, without mezzo launch");
  return {std::nullopt, task->world_size, task->rank, 0,
          with_port(task->master_addr, fmt::format("{}", task->master_port))};
}

}  // namespace

NodeEnvironment NodeEnvironment::detect() {
  NodeEnvironment found = variable("PET_NNODES")           ? from_torchelastic()
                          : variable("SKYPILOT_NUM_NODES") ? from_skypilot()
                                                           : from_tasks();
  TORCH_CHECK_VALUE(found.nnodes.value_or(1) == 1 || (found.node_rank && !found.master.empty()),
                    "the environment names ", *found.nnodes,
                    " nodes, but not the number of this node or the host of node 0. Pass --nnodes, --node-rank and "
                    "--master");
  return found;
}

}  // namespace mezzo::app
