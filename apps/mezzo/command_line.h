#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace mezzo::app {

/// The command called `name`, or null.
const CLI::App* find_command(const CLI::App& app, const std::string& name);

/// The commands that `--help` shows.
std::vector<const CLI::App*> shown_commands(const CLI::App& app);

/// Their names, and the options of one, as they are written: `--learning-rate`.
std::vector<std::string> command_names(const CLI::App& app);
std::vector<std::string> option_names(const CLI::App& command);

/// The help of the program or of a command, in lines of at most 80 columns.
/// @param shows_all  also the options that are not basic
std::string help_text(const CLI::App& app, bool shows_all);

/// Facts about an option that CLI11 has no place for. Help, shell completion and the manual page read them.
struct OptionNotes {
  std::vector<std::string> choices = {};  ///< the names that it takes, if they can be counted
  bool is_basic = true;                   ///< `--help` shows it; `--help-all` shows all options
  bool is_required = false;               ///< marked in help, and checked by its command
  bool is_of_data = false;                ///< about the files of --data, without which check_has_data() refuses it
};

/// The notes of `option`, to be read or set.
OptionNotes& notes_of(const CLI::Option* option);

/// All of `text` as a number.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  text.remove_prefix(text.starts_with('+') ? 1 : 0);
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

/// What `option` takes that `text` is not, or nothing.
std::string_view unmet_type(const CLI::Option& option, const std::string& text);

/// Parses the arguments after the program's name: the command first, and with it the settings of a `--config` file.
/// @return what `--help` or `--version` ask to be printed, instead of running anything.
/// @throws UsageError  that names the invalid argument, and valid ones.
std::optional<std::string> parse_command_line(CLI::App& app, std::vector<std::string> arguments);

}  // namespace mezzo::app
