#include "text/train/resuming.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <system_error>
#include <utility>

#include "mezzo/text/train/recorded_settings.h"
#include "mezzo/text/train/settings.h"
#include "text/checkpoint/checkpoint_format.h"
#include "text/io/content_hash.h"
#include "text/io/json.h"
#include "text/train/run_identity.h"

namespace mezzo::text {
namespace {

using Json = nlohmann::ordered_json;

/// What `read` makes of a run.json.
template <class Read>
auto read_from(const std::filesystem::path& run_json, const Read& read) {
  const Json json = read_json_object(run_json);
  try {
    json.at("environment").at("mezzo");
    return read(json);
  } catch (const Json::exception&) {
    TORCH_CHECK_VALUE(false, run_json.string(),
                      ": is not a run.json of mezzo train; name the run.json of a run, or a TOML file of settings");
  }
}

/// @param warns  of damaged ones that are passed over: one of the ranks.
std::optional<Checkpoint> find_checkpoint(const TrainConfig& config, bool warns) {
  if (config.resume.empty()) return std::nullopt;
  const std::filesystem::path checkpoints = config.output / "checkpoints";
  if (config.resume != "auto") return load_checkpoint(config.resume);
  std::vector<std::string> problems;
  auto checkpoint = load_newest_checkpoint(checkpoints, problems);
  TORCH_CHECK_VALUE(checkpoint || problems.empty(), "--resume auto: no checkpoint in ", checkpoints.string(),
                    " is intact: ", fmt::format("{}", fmt::join(problems, "; ")),
                    "; nothing was changed: restore a copy, or start anew in another --output");
  if (!warns) return checkpoint;
  for (const std::string& problem : problems) {
    TORCH_WARN("checkpoint passed over: ", problem);
  }
  for (const auto& [step, path] : checkpoint_format::list_incomplete(checkpoints)) {
    if (!checkpoint || step > checkpoint->step)
      TORCH_WARN("incomplete checkpoint ignored: ", path.string(), " has no whole manifest.json");
  }
  return checkpoint;
}

/// Two hosts may each see another run's checkpoint, of the same step.
std::string name_of(const std::optional<Checkpoint>& checkpoint) {
  if (!checkpoint) return "none";
  ContentHash state;
  const std::string text = checkpoint_format::state_text(*checkpoint);
  state.update(text.data(), text.size());
  return fmt::format("step {} of run {} (state {:.8})", checkpoint->step, checkpoint->run, state.hex());
}

}  // namespace

std::optional<Checkpoint> agree_on_start(const TrainConfig& config, const Ranks& ranks) {
  auto checkpoint = ranks.together([&] { return find_checkpoint(config, ranks.is_main()); });
  // First, since a different checkpoint also makes later values differ.
  ranks.check_same({{"the checkpoint to resume from, which all hosts must see,", name_of(checkpoint)}});
  std::map<std::string, std::string> start = {{"dry-run", config.dry_run ? "true" : "false"}};
  const RunIdentity::Values before = flags_before(config, checkpoint);
  for (const char* chosen : {"shares", "batch-size"}) {
    start.emplace(fmt::format("the {} of the run that goes on, which all hosts must see,", chosen),
                  before.contains(chosen) ? before.at(chosen) : "none");
  }
  for (const auto& [name, value] : config.settings()) {
    if (name == "batch-size" || name == "diagnose" || name == "eval-every" || name == "save-every" ||
        name == "shares" || name == "epochs" || name == "max-steps" || name == "patience" || name == "pause-at") {
      start.emplace(name, value);
    }
  }
  ranks.check_same(start);
  return checkpoint;
}

RunIdentity::Values flags_before(const TrainConfig& config, const std::optional<Checkpoint>& checkpoint) {
  if (checkpoint) return checkpoint->identity.flags;
  const bool goes_on = config.resume == "auto" && !config.overwrite;
  return goes_on ? recorded_flags(config.output / "run.json") : RunIdentity::Values();
}

std::vector<RecordedSetting> recorded_settings(const std::filesystem::path& run_json) {
  return read_from(run_json, [&](const Json& json) {
    std::vector<RecordedSetting> changed;
    const auto defaults = TrainConfig().settings();
    for (const auto& [name, value] : json.at("settings").items()) {
      RecordedSetting setting{name, {}};
      const bool is_list = value.is_array();
      for (const Json& one : is_list ? value : Json::array({value})) {
        TORCH_CHECK_VALUE(one.is_string() || (!is_list && (one.is_boolean() || one.is_number())), run_json.string(),
                          ": '", name, "' must be a string, a number, true, false, or an array of strings");
        setting.values.push_back(one.is_string() ? one.get<std::string>() : one.dump());
      }
      if (name == "precision" && value == "auto") json.at("environment").at("precision").get_to(setting.values.at(0));
      const bool is_default = setting.values.size() == 1 &&
                              std::ranges::find(defaults, std::pair(name, setting.values[0])) != defaults.end();
      if (!is_default && name != "resume") {
        changed.push_back(std::move(setting));
      }
    }
    return changed;
  });
}

RunIdentity::Values recorded_flags(const std::filesystem::path& run_json) {
  std::error_code none;
  if (!std::filesystem::exists(run_json, none)) return {};
  try {
    return read_from(run_json,
                     [](const Json& json) { return checkpoint_format::identity_from_json(json.at("identity")).flags; });
  } catch (const c10::ValueError&) {
    return {};  // the run that goes on with it reports the error
  }
}

std::vector<std::string> differences_from(const std::filesystem::path& run_json,
                                          const RunIdentity& identity,
                                          const RunIdentity::Values& environment) {
  return read_from(run_json, [&](const Json& json) {
    std::vector<std::string> told;
    const auto was = checkpoint_format::identity_from_json(json.at("identity"));
    if (const auto different = describe_difference(was, identity); !different.empty()) {
      told.push_back(fmt::format("warning: this run differs from {}: {}", run_json.string(), different));
    }
    const auto machine = json.at("environment").get<RunIdentity::Values>();
    if (const auto different = describe_move(machine, environment); !different.empty()) {
      told.push_back(fmt::format("warning: results may not be bit-identical to {}: {}", run_json.string(), different));
    }
    return told;
  });
}

}  // namespace mezzo::text
