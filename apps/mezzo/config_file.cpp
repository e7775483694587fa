#include "config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "command_line.h"
#include "commands.h"
#include "mezzo/text/io/toml_text.h"
#include "mezzo/text/train/recorded_settings.h"
#include "other_names.h"

namespace mezzo::app {
namespace {

/// As a field of CSV with a comma or quotes has it.
std::string quoted_csv(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + '"';
}

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

/// Strings, and arrays of them.
toml::table settings_of_run(const std::string& path) {
  toml::table table;
  for (const auto& [name, values] : as_usage([&] { return text::recorded_settings(path); })) {
    toml::array array;
    for (const std::string& value : values) array.push_back(value);
    values.size() == 1 ? table.insert(name, values.front()) : table.insert(name, std::move(array));
  }
  return table;
}

std::optional<std::string> to_text(const toml::node& node) {
  if (const auto* boolean = node.as_boolean()) return boolean->get() ? "true" : "false";
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* integer = node.as_integer()) return std::to_string(integer->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  return std::nullopt;
}

std::string_view line_of(std::string_view text, size_t number) {
  for (; number > 1 && !text.empty(); --number) text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  return text.substr(0, text.find('\n'));
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

bool is_toml(const std::string& text) {
  try {
    static_cast<void>(toml::parse(text));
    return true;
  } catch (const toml::parse_error&) {
    return false;
  }
}

/// The error of `key = value` whose value is a word without quotes; nothing for other lines.
std::optional<std::string> about_value(std::string_view line) {
  const size_t equals = std::min(line.find('='), line.size());
  const auto key = trimmed(line.substr(0, equals));
  auto value = trimmed(line.substr(std::min(equals + 1, line.size())));
  value = trimmed(value.substr(0, value.find('#')));
  const auto is_letter = [](unsigned char c) { return std::isalpha(c) != 0; };
  const bool has_word = std::ranges::any_of(value, is_letter) && value.find_first_of("\"'\\=,[]{}") == value.npos;
  if (key.empty() || !has_word || is_toml(fmt::format("x = {}", value))) return std::nullopt;
  std::string lower(value);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool is_switch = lower == "true" || lower == "false";
  return fmt::format("the value of {0} cannot be read; {1}: {0} = {3}{2}{3}", key,
                     is_switch ? fmt::format("write {} in lower case", lower) : "put text in quotes",
                     is_switch ? lower : std::string(value), is_switch ? "" : "\"");
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
  const std::string text = as_usage([&] { return text::read_toml_text(path); });
  try {
    return toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    const auto line = error.source().begin.line;
    std::string why = about_value(line_of(text, line)).value_or(std::string(error.description()));
    std::ranges::replace(why, '\n', ' ');  // of the file, if the message quotes one
    throw UsageError(line > 0 ? fmt::format("{}:{}: {}", path, line, why) : fmt::format("{}: {}", path, why));
  }
}

std::string to_flag(std::string_view key) {
  std::string flag = "--" + std::string(key);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

std::vector<std::string> to_arguments(const std::string& key,
                                      const toml::node& value,
                                      const CLI::App& command,
                                      const std::string& where) {
  const auto refuse = [&](const std::string& why) { throw UsageError(fmt::format("{}: '{}' {}", where, key, why)); };
  const Flag flag = find_flag(to_flag(key), command);
  if (flag.name == "--config" || flag.name.starts_with("--help")) {
    refuse(fmt::format("is not a setting of mezzo {}; leave it out", command.get_name()));
  }
  const std::string bare = key.substr(std::min(key.find_first_not_of('-'), key.size()));
  if (bare != key && find_flag(to_flag(bare), command).is_known()) {
    refuse(fmt::format("is not a setting of mezzo {}; write {}, without dashes", command.get_name(), bare));
  }
  const CLI::App* program = command.get_parent();
  const CLI::App* train = program != nullptr ? find_command(*program, "train") : nullptr;
  if (!flag.is_known() && command.get_name() == "tune" && train != nullptr && find_flag(flag.name, *train).is_known()) {
    refuse("is not a setting of mezzo tune; put it into [train]");
  }
  if (!flag.is_known()) {
    refuse(fmt::format("is not a setting of mezzo {}.{}", command.get_name(), did_you_mean_option(key, command)));
  }
  const bool has_meaning = flag.option != nullptr;  // else in_own_names() says what to do
  const bool is_switch = has_meaning && flag.is_switch(), takes_several = flag.takes_several();
  const bool is_number = flag.other == nullptr && !unmet_type(*flag.option, "").empty();
  const std::string expected = is_switch       ? "true or false"
                               : takes_several ? "a string or an array of strings"
                                               : "a string or a number";
  std::vector<const toml::node*> nodes;
  const auto* array = value.as_array();
  if (array == nullptr) nodes.push_back(&value);
  for (size_t i = 0; array != nullptr && i < array->size(); ++i) nodes.push_back(array->get(i));
  if (nodes.empty()) refuse("is an empty array; give it a value, or leave it out");
  constexpr std::string_view kLists[] = {"--columns", "--label-column", "--labels", "--lora-target-modules"};
  const bool is_list = takes_several || std::ranges::find(kLists, flag.name) != std::end(kLists);
  if (array != nullptr && has_meaning && !is_list) refuse("must be " + expected);
  std::vector<std::string> arguments;
  for (const toml::node* node : nodes) {
    std::string text = to_text(*node).value_or("");
    const bool fits = is_switch ? text == "true" || text == "false"
                                : node->is_string() || (node->is_number() && !takes_several) ||
                                      (node->is_boolean() && flag.other != nullptr);
    if (!fits && has_meaning) refuse("must be " + expected);
    const auto type = is_number ? unmet_type(*flag.option, text) : "";
    if (!type.empty()) refuse(fmt::format("is '{}', it must be {}", text, type));
    if (array != nullptr && !takes_several && text.find_first_of(",\"") != std::string::npos) text = quoted_csv(text);
    if (arguments.empty()) {
      arguments.push_back(fmt::format("{}={}", flag.name, text));
    } else if (takes_several) {
      arguments.push_back(text);
    } else {  // names, as A,B,C
      arguments.front() += "," + text;
    }
  }
  try {
    return in_own_names(arguments, command);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", where, error.what()));
  }
}

void expand_config_file(std::vector<std::string>& arguments, const CLI::App& app) {
  const auto path = config_path(arguments);
  const CLI::App* command = arguments.empty() ? nullptr : find_command(app, arguments.front());
  if (!path || command == nullptr || command->get_option_no_throw("--config") == nullptr) {
    return;
  }
  std::set<std::string> given;  // on the command line, whose flags win
  for (const std::string& argument : in_own_names(arguments, *command))
    given.insert(find_flag(argument, *command).name);
  std::map<std::string, std::string> places;
  std::vector<std::string> from_file;
  const bool is_search = command->get_name() == "tune";  // which reads its tables itself
  for (const auto& [key, value] : parse_config(*path)) {
    if (is_search && value.is_table()) {
      continue;
    }
    const auto where = place_of(*path, value);
    bool is_needed = true;
    for (std::string& argument : to_arguments(std::string(key.str()), value, *command, where)) {
      const std::string flag = find_flag(argument, *command).name;
      const bool is_flag = flag.starts_with("--");
      // --init-scale adds to --loss-scale.
      if (is_flag && flag != "--loss-scale" && !places.emplace(flag, where).second) {
        throw UsageError(fmt::format("{}: '{}' sets {}, which {} sets; leave one of them out", where, key.str(), flag,
                                     places[flag]));
      }
      if (is_flag) is_needed = !given.contains(flag);
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
  const std::string option = message.substr(0, message.find(' '));
  const auto path = config_path(arguments);
  const auto sets_it = [&](std::string_view flag) {
    return std::ranges::count(find_flag(flag, command).sets(), option) > 0;
  };
  if (!path || !option.starts_with("--") || std::ranges::any_of(arguments, sets_it)) {
    return "";  // the command line wins
  }
  try {
    for (const auto& [key, value] : parse_config(*path)) {
      if (sets_it(to_flag(key.str()))) return place_of(*path, value) + ": ";
    }
  } catch (const UsageError&) {  // of a command that had not come to read it
  }
  return "";
}

}  // namespace mezzo::app
