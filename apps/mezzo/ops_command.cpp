#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "commands.h"
#include "mezzo/text/io/nearest_name.h"
#include "mezzo/text/terminal/standard_output.h"
#include "mezzo/text/train/op_policy_file.h"

namespace mezzo::app {
namespace {

struct OpsFlags {
  std::string policy = "cuda";
  bool json = false;
};

int run_ops(const OpsFlags& flags) {
  const auto names = OpPolicy::preset_names();
  const std::vector<std::string> presets(names.begin(), names.end());
  if (std::find(presets.begin(), presets.end(), flags.policy) == presets.end() &&
      !std::filesystem::exists(flags.policy)) {
    throw UsageError(fmt::format("--policy '{}' is neither a preset ({}) nor a file.{}", flags.policy,
                                 fmt::join(presets, ", "), text::did_you_mean(flags.policy, presets)));
  }
  auto json = nlohmann::ordered_json::array();
  for (const auto& [op, policy] : text::parse_op_policy(flags.policy).lines()) {
    if (flags.json) {
      json.push_back({{"op", op}, {"policy", to_string(policy)}});
    } else {
      text::write_stdout(fmt::format("{:<22}{}\n", to_string(policy), op));
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
  app.add_option("--policy", flags->policy, "op list: cuda, cpu, cuda_2020, norms_stay_low, or a TOML file")
      ->capture_default_str();
  app.add_flag("--json", flags->json, "an array of objects instead of lines");
  app.footer(
      "Examples:\n"
      "  mezzo ops\n"
      "  mezzo ops --policy cpu --json");
  return [flags] { return run_ops(*flags); };
}

}  // namespace mezzo::app
