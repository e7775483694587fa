#pragma once

#include "mezzo/cpp20.h"

#include <filesystem>
#include <string>
#include <vector>

namespace mezzo::text {

/// A setting by the name of its flag, and its value: "true" or "false" of switches, several of flags for files.
struct RecordedSetting {
  std::string name;
  std::vector<std::string> values;
};

/// The settings that train again what the run trained that wrote `run_json`: all that are no defaults, but `resume`;
/// the precision is the one that it came to.
/// @throws c10::ValueError  where the file is missing or no run.json
std::vector<RecordedSetting> recorded_settings(const std::filesystem::path& run_json);

}  // namespace mezzo::text
