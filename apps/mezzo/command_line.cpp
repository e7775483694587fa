#include "command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include "commands.h"
#include "config_file.h"
#include "mezzo/text/io/nearest_name.h"
#include "other_names.h"

namespace mezzo::app {
namespace {

std::string unknown_argument(const CLI::App& command, const std::vector<std::string>& unknown) {
  const auto flag = std::find_if(unknown.begin(), unknown.end(), [](const auto& one) { return one.starts_with('-'); });
  if (flag == unknown.end()) {
    return fmt::format("'{}' is not expected", unknown.front());
  }
  const std::string name = flag->substr(0, flag->find('=')), meant = did_you_mean_option(name, command);
  return fmt::format("{} is not an option{}{}", name, meant.empty() ? "" : ".", meant);
}

/// What CLI11 has to say, in this program's words.
std::string describe(const CLI::ParseError& error, const CLI::App& command) {
  // If a name is wrong, something else is often missing for it.
  if (const auto unknown = command.remaining(); !unknown.empty() && !command.get_prefix_command()) {
    return unknown_argument(command, unknown);
  }
  return error.what();
}

UsageError with_help(const std::string& message, const std::string& program) {
  return UsageError(fmt::format("{}{} {} --help", message, message.ends_with('?') ? " See" : "; see", program));
}

}  // namespace

const CLI::App* find_command(const CLI::App& app, const std::string& name) {
  const auto found = app.get_subcommands([&](const CLI::App* command) { return command->get_name() == name; });
  return found.empty() ? nullptr : found.front();
}

std::vector<const CLI::App*> shown_commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : shown_commands(app)) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

OptionNotes& notes_of(const CLI::Option* option) {
  static std::map<const CLI::Option*, OptionNotes> all;
  return all[option];
}

std::string_view unmet_type(const CLI::Option& option, const std::string& text) {
  const std::string type = option.get_type_name();
  if (type == "INT" && !parse_number<int64_t>(text)) return "a whole number";
  if (type == "UINT" && !parse_number<uint64_t>(text)) return "a whole number from 0";
  if (type == "FLOAT" && !parse_number<double>(text)) return "a number";
  return "";
}

std::optional<std::string> parse_command_line(CLI::App& app, std::vector<std::string> arguments) {
  const std::string first = arguments.empty() ? "" : arguments.front();
  const CLI::App* command = find_command(app, first);
  if (first.empty()) {
    throw with_help(fmt::format("which command? {}", fmt::join(command_names(app), ", ")), "mezzo");
  }
  if (command == nullptr && !first.starts_with('-')) {
    const std::string meant = text::did_you_mean(first, command_names(app));
    throw with_help(fmt::format("'{}' is not a command{}{}", first, meant.empty() ? "" : ".", meant), "mezzo");
  }
  const auto launched = take_launched_command(arguments, app);
  if (command != nullptr) {
    check_set_once(arguments, *command);
    expand_config_file(arguments, app);
    arguments = with_precision_of_switches(in_own_names(arguments, *command));
  }
  arguments.insert(arguments.end(), launched.begin(), launched.end());
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::Success& request) {
    std::ostringstream text;
    app.exit(request, text, text);
    return text.str();
  } catch (const CLI::ParseError& error) {
    throw with_help(describe(error, command != nullptr ? *command : app),
                    command != nullptr ? "mezzo " + first : "mezzo");
  }
  return std::nullopt;
}

}  // namespace mezzo::app
