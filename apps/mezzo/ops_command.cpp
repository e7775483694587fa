#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "mezzo/text/io/nearest_name.h"
#include "mezzo/text/io/standard_output.h"
#include "mezzo/text/train/op_policy_file.h"

namespace mezzo::app {
namespace {

struct OpsFlags {
  std::optional<std::string> policy;  ///< none: the lists of all devices
  bool json = false;
};

/// The lines of several op lists, each with the names of the lists that have it: by policy, then by op.
using Lines = std::map<std::pair<CastPolicy, std::string>, std::vector<std::string>>;

Lines lines_of(const std::vector<std::string>& lists) {
  Lines lines;
  for (const auto& list : lists) {
    for (const auto& [op, policy] : text::parse_op_policy(list).lines()) {
      lines[{policy, op}].push_back(list);
    }
  }
  return lines;
}

int run_ops(const OpsFlags& flags) {
  const auto names = OpPolicy::preset_names();
  const std::vector<std::string> presets(names.begin(), names.end());
  std::vector<std::string> lists = {"cpu", "cuda"};  // the presets of devices, by the devices' names
  if (flags.policy) {
    lists = {*flags.policy};
    if (std::find(presets.begin(), presets.end(), lists[0]) == presets.end() && !std::filesystem::exists(lists[0])) {
      throw UsageError(fmt::format("--policy '{}' is neither a preset ({}) nor a file.{}", lists[0],
                                   fmt::join(presets, ", "), text::did_you_mean(lists[0], presets)));
    }
  }
  auto json = nlohmann::ordered_json::array();
  for (const auto& [line, devices] : lines_of(lists)) {
    const auto& [policy, op] = line;
    json.push_back({{"op", op}, {"policy", to_string(policy)}});
    std::string column;
    if (!flags.policy) {
      json.back()["devices"] = devices;
      column = fmt::format("{:<10}", fmt::format("{}", fmt::join(devices, " ")));
    }
    if (!flags.json) {
      text::write_stdout(fmt::format("{:<22}{}{}\n", to_string(policy), column, op));
    }
  }
  if (flags.json) {
    text::write_stdout(json.dump(2) + "\n");
  }
  return 0;
}

}  // namespace

Run add_ops(CLI::App& app) {
  auto flags = std::make_shared<OpsFlags>();
  auto* policy =
      app.add_option("--policy", flags->policy, "op list, or a TOML file; without it, the lists of both devices");
  notes_of(policy).choices = {"cuda", "cpu", "cuda_2020", "norms_stay_low", "masks_fp32"};
  app.add_flag("--json", flags->json, "print a JSON array");
  app.footer(
      "Examples:\n"
      "  mezzo ops | grep softmax\n"
      "  mezzo ops --policy cpu --json");
  return [flags] { return run_ops(*flags); };
}

}  // namespace mezzo::app
