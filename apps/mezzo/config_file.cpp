#include "config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>

#include "command_line.h"
#include "commands.h"
#include "config_values.h"
#include "mezzo/text/io/nearest_name.h"
#include "mezzo/text/io/toml_text.h"
#include "mezzo/text/train/recorded_settings.h"
#include "other_names.h"

namespace mezzo::app {
namespace {

std::optional<std::string> config_path(const std::vector<std::string>& arguments) {
  std::optional<std::string> path;
  for (size_t i = 1; i < arguments.size(); ++i) {
    if (arguments[i] == "--config" && i + 1 < arguments.size()) {
      path = arguments[i + 1];
    } else if (arguments[i].starts_with("--config=")) {
      path = arguments[i].substr(std::string_view("--config=").size());
    }
  }
  return path;
}

bool is_run_json(const std::string& path) { return path.ends_with(".json"); }

/// Strings, and arrays of them; switches as TOML has them.
toml::table settings_of_run(const std::string& path) {
  toml::table table;
  for (const auto& [name, values, is_switch] : as_usage([&] { return text::recorded_settings(path); })) {
    const bool is_boolean = is_switch && values.size() == 1 && (values[0] == "true" || values[0] == "false");
    if (is_boolean) {
      table.insert(name, values.front() == "true");
    } else if (values.size() == 1) {
      table.insert(name, values.front());
    } else {
      toml::array array;
      for (const std::string& value : values) array.push_back(value);
      table.insert(name, std::move(array));
    }
  }
  return table;
}

/// "FILE:LINE"; TOML alone has lines here.
std::string place_of(const std::string& path, const toml::node& value) {
  const auto line = value.source().begin.line;
  return line > 0 ? fmt::format("{}:{}", path, line) : path;
}

}  // namespace

toml::table parse_config(const std::string& path) {
  if (std::filesystem::is_directory(path)) {  // which reads as empty
    throw UsageError(fmt::format("--config {}: is a folder, not a TOML file or a run.json", path));
  }
  if (is_run_json(path)) {
    return settings_of_run(path);
  }
  try {
    return toml::parse(as_usage([&] { return text::read_toml_text(path); }), path);
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;
    std::string why(error.description());
    std::ranges::replace(why, '\n', ' ');  // of the file, where it quotes one
    throw UsageError(line > 0 ? fmt::format("{}:{}: {}", path, line, why) : fmt::format("{}: {}", path, why));
  }
}

namespace {

std::optional<std::string> to_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* integer = node.as_integer()) return std::to_string(integer->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  return std::nullopt;
}

}  // namespace

std::string to_flag(std::string_view key) {
  std::string flag = "--" + std::string(key);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

namespace {

/// The settings of a command, for keys that are none.
std::vector<std::string> setting_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (name != "config" && !name.starts_with("help")) names.push_back(name);
    }
  }
  return names;
}

/// For a key that other programs use.
std::vector<std::string> arguments_of_other_name(const std::string& flag,
                                                 const toml::node& value,
                                                 const CLI::App& command,
                                                 const std::string& where) {
  std::vector<std::string> given;
  const auto add = [&](const toml::node& node) {
    const auto* boolean = node.as_boolean();
    const auto text =
        boolean != nullptr ? std::optional<std::string>(boolean->get() ? "true" : "false") : to_text(node);
    if (!text)
      throw UsageError(fmt::format("{}: '{}' must be a string, a number, true or false", where, flag.substr(2)));
    given.push_back(given.empty() ? flag + "=" + *text : *text);
  };
  if (const auto* array = value.as_array(); array != nullptr && !array->empty()) {
    for (const toml::node& node : *array) add(node);
  } else {
    add(value);
  }
  try {
    return in_own_names(given, command);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", where, error.what()));
  }
}

}  // namespace

std::vector<std::string> to_arguments(const std::string& key,
                                      const toml::node& value,
                                      const CLI::App& command,
                                      const std::string& where) {
  const std::string flag = to_flag(key);
  const CLI::Option* option = command.get_option_no_throw(flag);
  if (option == nullptr && std::ranges::count(other_names(command), flag) > 0) {
    return arguments_of_other_name(flag, value, command, where);
  }
  if (option == nullptr || flag == "--config" || flag.starts_with("--help")) {
    throw UsageError(fmt::format("{}: '{}' is no setting of mezzo {}.{}", where, key, command.get_name(),
                                 text::did_you_mean(key, setting_names(command))));
  }
  const bool is_switch = option->get_expected_max() == 0;
  if (const auto* boolean = value.as_boolean(); boolean != nullptr && is_switch) {
    return boolean->get() ? std::vector{flag} : std::vector<std::string>();
  }
  const bool takes_several = option->get_expected_max() > 1;
  if (const auto* array = value.as_array(); array != nullptr && takes_several) {
    if (array->empty()) {
      throw UsageError(fmt::format("{}: '{}' is an empty array; name a file, or leave it out", where, key));
    }
    std::vector<std::string> arguments = {flag};
    for (const toml::node& element : *array) {
      if (!element.is_string()) {
        throw UsageError(fmt::format("{}: '{}' must be a string or an array of strings", where, key));
      }
      arguments.push_back(element.as_string()->get());
    }
    return arguments;
  }
  const auto given = to_text(value);
  if (!given || is_switch) {
    throw UsageError(
        fmt::format("{}: '{}' must be {}", where, key, is_switch ? "true or false" : "a string or a number"));
  }
  if (const auto type = unmet_type(*option, *given); !type.empty()) {
    throw UsageError(fmt::format("{}: '{}' is '{}', it must be {}", where, key, *given, type));
  }
  return {flag + "=" + *given};
}

namespace {

/// Whether a flag stands on the command line.
bool is_given(const std::vector<std::string>& arguments, const std::string& flag) {
  return std::ranges::any_of(
      arguments, [&](const std::string& argument) { return argument == flag || argument.starts_with(flag + "="); });
}

}  // namespace

void expand_config_file(std::vector<std::string>& arguments, const CLI::App& app) {
  const auto path = config_path(arguments);
  const CLI::App* command = arguments.empty() ? nullptr : find_command(app, arguments.front());
  if (!path || command == nullptr || command->get_option_no_throw("--config") == nullptr) {
    return;
  }
  std::vector<std::string> from_file;
  const bool is_search = command->get_name() == "tune";  // which reads its tables itself
  for (const auto& [key, value] : parse_config(*path)) {
    if (is_search && value.is_table()) {
      continue;
    }
    const auto where = place_of(*path, value);
    bool is_needed = true;  // a flag of the command line wins
    for (std::string& argument : to_arguments(std::string(key.str()), value, *command, where)) {
      if (argument.starts_with("--")) is_needed = !is_given(arguments, argument.substr(0, argument.find('=')));
      if (is_needed) from_file.push_back(std::move(argument));
    }
  }
  if (is_run_json(*path) && command->get_option_no_throw("--reproduces") != nullptr) {
    from_file.push_back("--reproduces=" + *path);
  }
  arguments.insert(arguments.begin() + 1, from_file.begin(), from_file.end());
}

std::string place_in_config_file(const std::vector<std::string>& arguments,
                                 const std::string& message,
                                 const CLI::App& command) {
  const std::string flag = message.substr(0, message.find(' '));
  const auto path = config_path(arguments);
  if (!path || !flag.starts_with("--")) {
    return "";
  }
  if (is_given(arguments, flag)) {
    return "";  // it won
  }
  try {
    for (const auto& [key, value] : parse_config(*path)) {
      const auto own = in_own_names({to_flag(key.str()) + "=value"}, command);
      if (is_given(own, flag)) return place_of(*path, value) + ": ";
    }
  } catch (const UsageError&) {  // of a command that had not come to read it
  }
  return "";
}

}  // namespace mezzo::app
