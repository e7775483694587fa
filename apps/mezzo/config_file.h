#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace mezzo::app {

/// Where `arguments` (the command first) hold `--config FILE`, puts the file's settings in
/// front of the command's own flags, so that flags win. The keys of a TOML file are flags without their dashes, also
/// with `_` for `-`; of a run.json, its settings, and where the run comes out otherwise, mezzo train says so.
/// @throws UsageError  naming file and line, for what is neither, or no flag of the command
void expand_config_file(std::vector<std::string>& arguments, const CLI::App& app);

/// "FILE:LINE: " if `message` begins with a flag whose value comes from the `--config` file in `arguments`.
std::string place_in_config_file(const std::vector<std::string>& arguments,
                                 const std::string& message,
                                 const CLI::App& command);

}  // namespace mezzo::app
