#pragma once

#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace mezzo::app {

/// Where `arguments` (the command first) hold `--config FILE`, puts the file's settings in front of the command's own
/// flags, so that flags win. The keys of a TOML file are flags without their dashes, also with `_` for `-`. The keys of
/// a run.json are its settings; if the run's results differ, mezzo train says so.
/// @throws UsageError  naming file and line, for a wrong file, or a key that is not a flag of the command
void expand_config_file(std::vector<std::string>& arguments, const CLI::App& app);

/// "FILE:LINE: " if `message` begins with a flag whose value comes from the `--config` file in `arguments`.
std::string place_in_config_file(const std::vector<std::string>& arguments,
                                 const std::string& message,
                                 const CLI::App& command);

/// A `--config` file: TOML, or the run.json of a run, whose settings form the table.
/// @throws UsageError  naming file and line
toml::table parse_config(const std::string& path);

/// The command-line arguments that say the same as one line of such a file, if any are needed.
/// @param where  file and line
/// @throws UsageError  for an unknown setting, or a value of another type
std::vector<std::string> to_arguments(const std::string& key,
                                      const toml::node& value,
                                      const CLI::App& command,
                                      const std::string& where);

/// "--learning-rate" of "learning_rate".
std::string to_flag(std::string_view key);

}  // namespace mezzo::app
