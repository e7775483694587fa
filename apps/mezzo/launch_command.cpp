#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "command_line.h"
#include "commands.h"
#include "config_file.h"
#include "mezzo/text/io/nearest_name.h"
#include "mezzo/text/launch/launcher.h"
#include "mezzo/text/machine/threads.h"
#include "node_environment.h"
#include "other_names.h"

namespace mezzo::app {
namespace {

using Arguments = std::vector<std::string>;

struct LaunchFlags {
  std::optional<int64_t> nproc;
  std::optional<int64_t> nnodes, node_rank, max_restarts;
  int64_t min_nproc = 0, min_nnodes = 0;
  std::string master;
  double grace_time = 30;
};

/// HOST:PORT, or [HOST]:PORT for an IPv6 address.
std::pair<std::string, int64_t> parse_master(const std::string& text) {
  const size_t colon = text.rfind(':');
  std::string host = text.substr(0, std::min(colon, text.size()));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    host.clear();
  }
  int64_t port = 0;
  const char* end = text.data() + text.size();
  const char* begin = colon == std::string::npos ? end : text.data() + colon + 1;
  const auto [rest, error] = std::from_chars(begin, end, port);
  if (host.empty() || error != std::errc() || rest != end || port < 1 || port > 65535) {
    throw UsageError(fmt::format("--master '{}' is not HOST:PORT, such as node0:29500", text));
  }
  return {host, port};
}

/// The command that starts a training run again: it goes on from the earlier start's checkpoint, if that start has
/// begun.
Arguments command_to_restart(Arguments command, const LaunchFlags& flags) {
  const double ranks = static_cast<double>(*flags.nproc) * static_cast<double>(flags.nnodes.value_or(1));
  command.insert(command.end(), {"--restarted", fmt::format("{:.0f}", ranks)});
  return command;
}

bool is_program_on_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const auto file = std::filesystem::path(folder) / name;
    std::error_code none;
    if (std::filesystem::is_regular_file(file, none) && ::access(file.c_str(), X_OK) == 0) return true;
  }
  return false;
}

/// Whether `command` is a program, and not a command of mezzo.
bool is_program(const Arguments& command, const CLI::App& launch_app) {
  return find_command(*launch_app.get_parent(), command.front()) == nullptr;
}

void check_command(const Arguments& command, const CLI::App& launch_app) {
  const CLI::App& app = *launch_app.get_parent();
  if (command.empty()) {
    throw UsageError("there is no command to launch. Example: mezzo launch --nproc 2 -- train …");
  }
  const std::string& name = command.front();
  if (name == "launch") {
    throw UsageError("'launch' is not a command to launch. See mezzo --help");
  }
  const bool is_path = name.find('/') != std::string::npos;
  if (is_program(command, launch_app) && !is_path && !is_program_on_path(name)) {
    const bool is_here = std::filesystem::is_regular_file(name);
    throw UsageError(fmt::format("'{}' is neither a command of mezzo nor a program on PATH.{} See mezzo launch --help",
                                 name,
                                 is_here ? fmt::format(" For the file of that name pass ./{}.", name)
                                         : text::did_you_mean(name, command_names(app))));
  }
}

Arguments with_program(const std::string& program, const Arguments& command) {
  Arguments result = {program};
  result.insert(result.end(), command.begin(), command.end());
  return result;
}

/// A message of LaunchOptions, with the flag in place of the option's name.
std::string with_flag(const std::string& message) {
  constexpr std::array flags = {std::pair("nproc", "--nproc"),
                                std::pair("nnodes", "--nnodes"),
                                std::pair("node_rank", "--node-rank"),
                                std::pair("min_nproc", "--min-nproc"),
                                std::pair("min_nnodes", "--min-nnodes"),
                                std::pair("max_restarts", "--max-restarts"),
                                std::pair("grace_seconds", "--grace-time"),
                                std::pair("master_port", "the port of --master")};
  for (const auto& [name, flag] : flags) {
    if (message.starts_with(std::string(name) + " is ")) {
      return flag + message.substr(std::string_view(name).size());
    }
  }
  return message;
}

/// Flags that are not given come from what started this launcher.
void add_defaults(LaunchFlags& flags) {
  const bool takes_all = !flags.nnodes && !flags.node_rank && flags.master.empty();
  if (!takes_all && flags.nproc) return;
  const NodeEnvironment found = as_usage([&] { return NodeEnvironment::detect(); });
  if (!flags.nproc) flags.nproc = found.nproc;
  if (!takes_all) return;  // a flag without its environment, or the other way round, would be another cluster's
  flags.nnodes = found.nnodes;
  flags.node_rank = found.node_rank;
  flags.master = found.master;
  if (flags.min_nnodes == 0) flags.min_nnodes = found.min_nnodes;
}

int run_launch(LaunchFlags flags, const CLI::App& launch_app) {
  const Arguments command = launch_app.remaining();
  check_command(command, launch_app);
  add_defaults(flags);
  if (!flags.nproc) {  // not left to CLI11, which would not see that a wrong option was meant
    throw UsageError("--nproc is required: the ranks on this node");
  }
  if (flags.nnodes > 1 && flags.master.empty()) {
    throw UsageError(
        "--nnodes needs --master HOST:PORT: an address of node 0 that every node can reach, and a free port on node 0");
  }
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const bool is_mezzo = !is_program(command, launch_app);
  text::LaunchOptions options(is_mezzo ? with_program(program, command) : command);
  if (command.front() == "train") {
    Arguments expanded = command;
    expand_config_file(expanded, *launch_app.get_parent());  // so that errors there are reported once, and not by each
                                                             // rank
    options.restart_command(with_program(program, command_to_restart(command, flags)));
  }
  options.name("mezzo launch")
      .final_statuses(is_mezzo ? std::vector{kWrongUsage, kNotAllSaved} : std::vector<int>())
      .nproc(*flags.nproc)
      .nnodes(flags.nnodes.value_or(1))
      .node_rank(flags.node_rank.value_or(0))
      .min_nnodes(flags.min_nnodes)
      .grace_seconds(flags.grace_time)
      .processors(text::usable_processors());
  if ((flags.min_nproc != 0 || flags.min_nnodes != 0) && is_mezzo && command.front() != "train") {
    throw UsageError(fmt::format("{} is for mezzo train and for other programs; leave it out",
                                 flags.min_nproc != 0 ? "--min-nproc" : "--min-nnodes"));
  }
  const int64_t ranks_to_spare = flags.min_nproc != 0 ? *flags.nproc - flags.min_nproc : 0;
  const int64_t nodes_to_spare = flags.min_nnodes != 0 ? options.nnodes() - flags.min_nnodes : 0;
  options.min_nproc(flags.min_nproc)
      .max_restarts(flags.max_restarts.value_or(std::max({ranks_to_spare, nodes_to_spare, int64_t{0}})));
  if (!flags.master.empty()) {
    const auto [host, port] = parse_master(flags.master);
    options.master_addr(host).master_port(port);
  }
  try {
    return text::launch(options);
  } catch (const c10::ValueError& error) {
    throw UsageError(with_flag(error.what_without_backtrace()));
  }
}

}  // namespace

Arguments take_launched_command(Arguments& arguments, const CLI::App& app) {
  if (arguments.front() != "launch") return {};
  const CLI::App& launch_app = *find_command(app, "launch");
  size_t begin = 1;
  while (begin < arguments.size() && arguments[begin].starts_with('-') && arguments[begin] != "--") {
    const Flag flag = find_flag(arguments[begin], launch_app);
    if (!flag.is_known()) {
      throw UsageError(fmt::format("{} is not an option of mezzo launch.{} See mezzo launch --help", flag.name,
                                   did_you_mean_option(flag.name, launch_app)));
    }
    begin += flag.is_switch() || arguments[begin].find('=') != std::string::npos ? 1 : 2;
  }
  begin = std::min(begin, arguments.size());
  const auto first = arguments.begin() + static_cast<std::ptrdiff_t>(begin);
  Arguments command(first, arguments.end());
  arguments.erase(first, arguments.end());
  if (!command.empty() && command.front() == "--") command.erase(command.begin());
  return command;
}

Run add_launch(CLI::App& app) {
  auto flags = std::make_shared<LaunchFlags>();
  notes_of(app.add_option("--nproc", flags->nproc, "ranks on this node")).is_required = true;
  app.add_option(
         "--max-restarts", flags->max_restarts,
         "maximum number of restarts; if a rank fails, all ranks restart, and train continues from its last checkpoint")
      ->default_str("0");
  app.add_option("--min-nproc", flags->min_nproc,
                 "fewest ranks after a failure; each restart leaves out the failed ranks; 0: all ranks")
      ->capture_default_str();
  app.add_option("--nnodes", flags->nnodes, "number of nodes; each runs mezzo launch with the same --nproc")
      ->default_str("1");
  app.add_option("--min-nnodes", flags->min_nnodes, "fewest nodes after a node is lost; 0: all nodes")
      ->capture_default_str();
  app.add_option("--node-rank", flags->node_rank, "number of this node, from 0")->default_str("0");
  app.add_option("--master", flags->master, "address of node 0, and a port that is free there")->type_name("HOST:PORT");
  app.add_option("--grace-time", flags->grace_time, "seconds for ranks to end after Ctrl-C or SIGTERM")
      ->capture_default_str();
  app.footer(
      "Each rank runs COMMAND: a command of mezzo, or a program (a path with a slash,\n"
      "or a name on PATH) that reads RANK, WORLD_SIZE and the other variables of\n"
      "torchrun. Under Slurm, MPI, Kubeflow and SkyPilot the nodes are found.\n\n"
      "Examples:\n"
      "  mezzo launch --nproc 2 -- train --model DIR --train train.csv --output out\n"
      "  mezzo launch --nproc 8 --min-nproc 4 -- train --config run.toml\n"
      "  mezzo launch --nproc 4 --nnodes 2 --node-rank 0 --master host0:29500 \\\n"
      "      -- train --config run.toml\n"
      "  mezzo launch --nproc 2 --max-restarts 3 -- ./my_program --epochs 5");
  app.prefix_command();  // everything from the command on is its own
  return [flags, &app] { return run_launch(*flags, app); };
}

}  // namespace mezzo::app
