#pragma once

#include "mezzo/cpp20.h"

#include <filesystem>
#include <string>
#include <vector>

namespace mezzo::text {

/// A setting by the name of its flag, and its values: "true" or "false" for switches, several for
/// files.
struct RecordedSetting {
  std::string name;                 ///< without dashes
  std::vector<std::string> values;  ///< as text
};

/// The settings to repeat the run that wrote `run_json`: all that differ from the defaults, except
/// `resume`. The precision is the one that was used.
/// @throws c10::ValueError  if the file is missing or is not a run.json
std::vector<RecordedSetting> recorded_settings(const std::filesystem::path& run_json);

}  // namespace mezzo::text
