#include "command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <map>
#include <sstream>
#include <string_view>
#include <system_error>
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
  const std::string name = flag->substr(0, flag->find('='));
  auto known = option_names(command);
  std::ranges::move(other_names(command), std::back_inserter(known));
  const std::string meant = text::did_you_mean(name, known);
  return fmt::format("{} is no option{}{}", name, meant.empty() ? "" : ".", meant);
}

template <class Number>
bool is_number(std::string_view text) {
  text.remove_prefix(text.starts_with('+') ? 1 : 0);
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

std::string not_of_type(const CLI::Option& option, const std::string& value) {
  const bool is_too_large = value.find_first_not_of("0123456789") == std::string::npos;
  return fmt::format("{} '{}' is not {}{}", option.get_name(), value, unmet_type(option, value),
                     is_too_large ? " that fits 64 bits" : "");
}

/// What is wrong with the value that CLI11 complains of: "Could not convert: --epochs = many".
std::string not_converted(const CLI::App& command, const std::string& message) {
  const size_t name = message.find("--"), equals = message.find(" = ");
  const CLI::Option* option = nullptr;
  if (name != std::string::npos && equals != std::string::npos && name < equals) {
    option = command.get_option_no_throw(message.substr(name, equals - name));
  }
  return option == nullptr ? message : not_of_type(*option, message.substr(equals + 3));
}

/// CLI11 itself takes -1 for the largest unsigned number, and too large a
/// number for the largest one.
/// @throws UsageError
void check_numbers(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& value : option->results()) {
      if (option->get_expected_max() > 0 && !unmet_type(*option, value).empty()) {
        throw UsageError(not_of_type(*option, value));
      }
    }
  }
}

/// What CLI11 has to say, in this program's words.
std::string describe(const CLI::ParseError& error, const CLI::App& command) {
  // Where a name is wrong, something else is often missing for it.
  if (const auto unknown = command.remaining(); !unknown.empty() && !command.get_prefix_command()) {
    return unknown_argument(command, unknown);
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    const std::string message = error.what();
    return fmt::format("{} needs a value", message.substr(0, message.find(':')));
  }
  return dynamic_cast<const CLI::ConversionError*>(&error) != nullptr ? not_converted(command, error.what())
                                                                      : error.what();
}

UsageError with_help(const std::string& message, const std::string& program) {
  return UsageError(fmt::format("{}{} {} --help", message, message.ends_with('?') ? " See" : "; see", program));
}

/// An empty value is mostly a variable of a script that was never set. Only a text may be empty.
void check_not_empty(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    const auto& values = option->results();
    const bool is_text = option->get_name() == "--text" || option->get_name() == "--text-pair";
    if (!values.empty() && values.back().empty() && option->get_expected_max() > 0 && !is_text) {
      throw UsageError(fmt::format("{} is empty; give it a value, or leave it out", option->get_name()));
    }
  }
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
  if (type == "INT" && !is_number<int64_t>(text)) return "a whole number";
  if (type == "UINT" && !is_number<uint64_t>(text)) return "a whole number from 0";
  if (type == "FLOAT" && !is_number<double>(text)) return "a number";
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
    throw with_help(fmt::format("'{}' is no command{}{}", first, meant.empty() ? "" : ".", meant), "mezzo");
  }
  const auto launched = take_launched_command(arguments, app);
  if (command != nullptr) {
    arguments = in_own_names(arguments, *command);
    expand_config_file(arguments, app);
    arguments = in_own_names(arguments, *command);
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
  check_not_empty(*command);
  check_numbers(*command);
  return std::nullopt;
}

}  // namespace mezzo::app
