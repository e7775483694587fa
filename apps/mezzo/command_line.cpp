#include "command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
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

/// CLI11 takes the argument after `--flag=` for its value.
void give_empty_values(std::vector<std::string>& arguments) {
  std::vector<std::string> apart;
  for (std::string& argument : arguments) {
    const bool is_empty =
        argument.starts_with("--") && argument.ends_with('=') && argument.find('=') + 1 == argument.size();
    if (is_empty) argument.pop_back();
    apart.push_back(std::move(argument));
    if (is_empty) apart.emplace_back();
  }
  arguments = std::move(apart);
}

/// A flag that takes several values stands there once, with one at least: of any other flag the last place counts, and
/// here that would drop files without a word. (CLI11 takes the next flag for a value.)
void check_lists(const std::vector<std::string>& arguments, const CLI::App& command) {
  std::set<std::string> seen;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string flag = arguments[i].substr(0, arguments[i].find('='));
    const CLI::Option* option = flag.starts_with("--") ? command.get_option_no_throw(flag) : nullptr;
    if (option == nullptr || option->get_expected_max() <= 1) continue;
    if (!seen.insert(flag).second) {
      throw UsageError(fmt::format("{} stands there twice; pass all of its files behind one", flag));
    }
    const bool is_last = i + 1 == arguments.size();
    if (flag == arguments[i] && (is_last || arguments[i + 1].starts_with("--"))) {
      throw UsageError(fmt::format("{} needs a value", flag));
    }
  }
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

/// CLI11 takes a number for a switch, too.
void check_switches(const CLI::App& command, const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    const size_t sign = argument.find('=');
    const CLI::Option* option =
        sign != std::string::npos ? command.get_option_no_throw(argument.substr(0, sign)) : nullptr;
    const std::string value = option != nullptr ? argument.substr(sign + 1) : "";
    if (option != nullptr && option->get_expected_max() == 0 && value != "true" && value != "false") {
      throw UsageError(fmt::format("{} is '{}'; pass it alone, or true or false", option->get_name(), value));
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
  if (command != nullptr) arguments = in_own_names(arguments, *command);
  expand_config_file(arguments, app);
  if (command != nullptr) {
    check_switches(*command, arguments);
    check_lists(arguments, *command);
  }
  give_empty_values(arguments);
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
