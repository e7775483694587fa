#include "text/run/recorded_run.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <type_traits>
#include <utility>

#include "mezzo/text/run/recorded_settings.h"
#include "mezzo/text/setup/settings.h"
#include "mezzo/text/setup/train_config.h"
#include "text/checkpoint/checkpoint_format.h"
#include "text/io/json.h"
#include "text/run/environment.h"
#include "text/run/run_identity.h"

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
    TORCH_CHECK_VALUE(
        false, run_json.string(),
        ": is no run.json that mezzo train wrote; name the run.json of a run, or a TOML file of settings");
  }
}

bool is_switch(const std::string& name) {
  bool is_one = false;
  const TrainConfig defaults;
  visit_settings(defaults, [&](const Setting& setting, const auto& field) {
    is_one = is_one || (setting.name() == name && std::is_same_v<decltype(field), const bool&>);
  });
  return is_one;
}

}  // namespace

std::vector<RecordedSetting> recorded_settings(const std::filesystem::path& run_json) {
  return read_from(run_json, [](const Json& json) {
    std::vector<RecordedSetting> changed;
    const auto defaults = TrainConfig().settings();
    for (const auto& [name, value] : json.at("settings").items()) {
      RecordedSetting setting{name, {}, is_switch(name)};
      if (value.is_array()) {
        value.get_to(setting.values);
      } else {
        setting.values = {name == "precision" && value == "auto"
                              ? json.at("environment").at("precision").get<std::string>()
                              : value.get<std::string>()};
      }
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
    return {};  // who goes on with it says what is wrong
  }
}

std::vector<std::string> differences_from(const std::filesystem::path& run_json,
                                          const RunIdentity& identity,
                                          const RunIdentity::Values& environment) {
  return read_from(run_json, [&](const Json& json) {
    std::vector<std::string> told;
    const auto was = checkpoint_format::identity_from_json(json.at("identity"));
    if (const auto different = describe_difference(was, identity); !different.empty()) {
      told.push_back(fmt::format("warning: this is not the run of {} again: {}", run_json.string(), different));
    }
    const auto machine = json.at("environment").get<RunIdentity::Values>();
    if (const auto different = describe_move(machine, environment); !different.empty()) {
      told.push_back(fmt::format("warning: not to the bits of {}: {}", run_json.string(), different));
    }
    return told;
  });
}

}  // namespace mezzo::text
