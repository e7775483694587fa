#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "commands.h"
#include "mezzo/amp/op_lists.h"

namespace mezzo::app {
namespace {

struct Flags {
  std::string policy = "cuda";
  bool json = false;
};

int run_ops(const Flags& flags) {
  const auto ops = autocast_ops(flags.policy == "cpu" ? c10::kCPU : c10::kCUDA);
  auto json = nlohmann::ordered_json::array();
  for (const OpPolicyEntry& entry : ops) {
    if (flags.json) {
      json.push_back({{"op", entry.op}, {"policy", to_string(entry.policy)}});
    } else {
      fmt::print("{:<22}{}\n", to_string(entry.policy), entry.op);
    }
  }
  if (flags.json) {
    fmt::print("{}\n", json.dump(2));
  }
  return 0;
}

}  // namespace

Run add_ops(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  app.add_option("--policy", flags->policy, "op list: cuda or cpu")
      ->capture_default_str()
      ->check(CLI::IsMember({"cuda", "cpu"}));
  app.add_flag("--json", flags->json, "an array of objects instead of lines");
  return [flags] { return run_ops(*flags); };
}

}  // namespace mezzo::app
