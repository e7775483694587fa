#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mezzo::app {

/// The command called `name`, or null.
const CLI::App* find_command(const CLI::App& app, const std::string& name);

/// The commands that `--help` shows.
std::vector<const CLI::App*> shown_commands(const CLI::App& app);

/// Their names, and the options of one, as they are written: `--learning-rate`.
std::vector<std::string> command_names(const CLI::App& app);
std::vector<std::string> option_names(const CLI::App& command);

/// Facts about an option that CLI11 has no place for. Help, shell completion and the manual page read them.
struct OptionNotes {
  std::vector<std::string> choices = {};  ///< the names that it takes, if they can be counted
  bool is_basic = true;                   ///< `--help` shows it; `--help-all` shows all options
  bool is_required = false;               ///< marked in help, and checked by its command
};

/// The notes of `option`, to be read or set.
OptionNotes& notes_of(const CLI::Option* option);

/// What `option` takes that `text` is not, or nothing.
std::string_view unmet_type(const CLI::Option& option, const std::string& text);

/// Parses what follows the program's name: the command first, and with it the
/// settings of a `--config` file.
/// @return what `--help` or `--version` ask to be printed, instead of running anything.
/// @throws UsageError  that says what cannot be meant, and what may be.
std::optional<std::string> parse_command_line(CLI::App& app, std::vector<std::string> arguments);

}  // namespace mezzo::app
