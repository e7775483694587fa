#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "commands.h"
#include "mezzo/text/op_policy_file.h"

namespace mezzo::app {
namespace {

struct OpsFlags {
  std::string policy = "cuda";
  bool json = false;
};

int run_ops(const OpsFlags& flags) {
  auto json = nlohmann::ordered_json::array();
  for (const auto& [op, policy] : text::parse_op_policy(flags.policy).lines()) {
    if (flags.json) {
      json.push_back({{"op", op}, {"policy", to_string(policy)}});
    } else {
      fmt::print("{:<22}{}\n", to_string(policy), op);
    }
  }
  if (flags.json) {
    fmt::print("{}\n", json.dump(2));
  }
  return 0;
}

}  // namespace

Run add_ops(CLI::App& app) {
  auto flags = std::make_shared<OpsFlags>();
  app.add_option("--policy", flags->policy, "op list: cuda, cpu, cuda_2020, norms_stay_low, or a TOML file")
      ->capture_default_str();
  app.add_flag("--json", flags->json, "an array of objects instead of lines");
  return [flags] { return run_ops(*flags); };
}

}  // namespace mezzo::app
