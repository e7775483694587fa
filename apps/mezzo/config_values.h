#pragma once

#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace mezzo::app {

/// A `--config` file: TOML, or the run.json of a run, whose settings are those of the table.
/// @throws UsageError  naming file and line
toml::table parse_config(const std::string& path);

/// The command-line arguments that say the same as one line of such a file, if any are needed.
/// @param where  file and line
/// @throws UsageError  for what is no setting of the command, or not of its type
std::vector<std::string> to_arguments(const std::string& key,
                                      const toml::node& value,
                                      const CLI::App& command,
                                      const std::string& where);

/// "--learning-rate" of "learning_rate".
std::string to_flag(std::string_view key);

}  // namespace mezzo::app
