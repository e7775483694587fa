#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "command_line.h"

namespace mezzo::app {
namespace {

constexpr size_t kColumns = 80, kIndent = 26;
constexpr char kJoin = '\x1f';  // a space between words of one line

size_t width_of(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

/// `left` and, from column kIndent on, `right` in as many lines as it needs.
std::string row(const std::string& left, const std::string& right) {
  const std::string indent(kIndent, ' ');
  std::string out = left;
  out += width_of(left) + 2 > kIndent ? "\n" + indent : std::string(kIndent - width_of(left), ' ');
  size_t column = kIndent;
  std::istringstream words(right);
  for (std::string word; words >> word;) {
    if (column > kIndent && column + 1 + width_of(word) > kColumns) {
      out += "\n" + indent;
      column = kIndent;
    } else if (column > kIndent) {
      out += " ";
      ++column;
    }
    out += word;
    column += width_of(word);
  }
  std::ranges::replace(out, kJoin, ' ');
  return out + "\n";
}

bool is_required(const CLI::Option& option) { return option.get_required() || notes_of(&option).is_required; }

std::string metavar_of(const CLI::Option& option) {
  if (option.get_expected_max() == 0) return "";
  const std::string type = option.get_type_name().substr(0, option.get_type_name().find(':'));
  if (type == "INT" || type == "UINT") return "N";
  if (type == "FLOAT") return "NUMBER";
  return type == "TEXT" && !notes_of(&option).choices.empty() ? "NAME" : type;
}

std::string description_of(const CLI::Option& option) {
  const auto& choices = notes_of(&option).choices;
  const std::string& given = option.get_default_str();
  return fmt::format(
      "{}{}{}{}", option.get_description(), choices.empty() ? "" : fmt::format(" ({})", fmt::join(choices, ", ")),
      is_required(option) ? " [required]" : "", given.empty() ? "" : fmt::format(" [default:{}{}]", kJoin, given));
}

std::string with_metavar(const CLI::Option& option) {
  std::string name = option.get_positional() ? "" : "--" + option.get_lnames().front();
  if (!option.get_snames().empty()) name = fmt::format("-{}, {}", option.get_snames().front(), name);
  const std::string metavar = metavar_of(option);
  return fmt::format("{}{}{}{}", name, name.empty() || metavar.empty() ? "" : " ", metavar,
                     option.get_expected_max() > 1 && option.get_allow_extra_args() ? "..." : "");
}

/// In the order of their first member, but first those with a required option, and last the group that CLI11 gives.
std::vector<std::string> groups_of(const CLI::App& app) {
  std::vector<std::string> groups;
  const auto add = [&](const std::string& group) {
    if (!group.empty() && std::ranges::find(groups, group) == groups.end()) groups.push_back(group);
  };
  for (const CLI::App* command : shown_commands(app)) add(command->get_group());
  for (const CLI::Option* option : app.get_options()) add(option->get_group());
  const auto is_required_group = [&](const std::string& group) {
    return std::ranges::any_of(app.get_options(), [&](const CLI::Option* option) {
      return option->get_group() == group && is_required(*option);
    });
  };
  std::ranges::stable_partition(groups, is_required_group);
  std::ranges::stable_partition(groups, [](const std::string& group) { return group != "Options"; });
  return groups;
}

std::string usage(const CLI::App& app) {
  std::string text = fmt::format("Usage: mezzo {}", app.get_parent() == nullptr ? "COMMAND" : app.get_name());
  for (const CLI::Option* option : app.get_options()) {
    if (is_required(*option)) text += " " + with_metavar(*option);
  }
  return text + " [options]" + (app.get_prefix_command() ? " -- COMMAND" : "") + "\n";
}

}  // namespace

std::string help_text(const CLI::App& app, bool shows_all) {
  std::string text = fmt::format("{}\n\n{}", app.get_description(), usage(app));
  for (const std::string& group : groups_of(app)) {
    std::string rows;
    for (const CLI::App* command : shown_commands(app)) {
      if (command->get_group() == group) rows += row("  " + command->get_name(), command->get_description());
    }
    for (const CLI::Option* option : app.get_options()) {
      const bool is_shown = option->get_group() == group && (shows_all || notes_of(option).is_basic);
      if (is_shown) rows += row("  " + with_metavar(*option), description_of(*option));
    }
    if (!rows.empty()) text += fmt::format("\n{}:\n{}", group, rows);
  }
  const auto hidden = std::ranges::count_if(app.get_options(), [](const CLI::Option* option) {
    return !option->get_group().empty() && !notes_of(option).is_basic;
  });
  if (!shows_all && hidden > 0) text += fmt::format("\n--help-all shows {} more options.\n", hidden);
  return text + (app.get_footer().empty() ? "" : "\n" + app.get_footer() + "\n");
}

}  // namespace mezzo::app
