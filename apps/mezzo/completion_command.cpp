#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "mezzo/text/terminal/standard_output.h"
#include "mezzo/version.h"

namespace mezzo::app {
namespace {

struct Flag {
  std::string name, what;  // "--precision"
  bool takes_value = false;
  std::vector<std::string> choices = {};
};

struct Command {
  std::string name, what;
  std::vector<Flag> flags = {};
  std::vector<std::string> words = {};  // that it takes in place of a flag
};

/// All that `--help` shows.
std::vector<Command> commands_of(const CLI::App& program) {
  std::vector<Command> commands;
  for (const CLI::App* app : shown_commands(program)) {
    Command command{app->get_name(), app->get_description()};
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_group().empty()) continue;
      if (option->get_lnames().empty()) {
        command.words = notes_of(option).choices;
        continue;
      }
      command.flags.push_back({"--" + option->get_lnames().front(), option->get_description(),
                               option->get_expected_max() > 0, notes_of(option).choices});
    }
    commands.push_back(std::move(command));
  }
  return commands;
}

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
  return text;
}

std::string names_of(const std::vector<Command>& commands) {
  std::vector<std::string> names;
  for (const Command& command : commands) names.push_back(command.name);
  return fmt::format("{}", fmt::join(names, " "));
}

std::string flags_of(const Command& command) {
  std::vector<std::string> names;
  for (const Flag& flag : command.flags) names.push_back(flag.name);
  return fmt::format("{}", fmt::join(names, " "));
}

/// What is neither a flag nor one of a flag's names is left to bash: files.
std::string bash_script(const std::vector<Command>& commands) {
  std::string of_values, of_flags;
  for (const Command& command : commands) {
    for (const Flag& flag : command.flags) {
      if (!flag.choices.empty()) {
        of_values += fmt::format("    {}:{}) words='{}' ;;\n", command.name, flag.name, fmt::join(flag.choices, " "));
      }
    }
    of_flags += fmt::format("      {}:-*) words='{}' ;;\n", command.name, flags_of(command));
    if (!command.words.empty()) {
      of_flags += fmt::format("      {}:*) words='{}' ;;\n", command.name, fmt::join(command.words, " "));
    }
  }
  return fmt::format(R"(# bash completion of mezzo {0}
_mezzo() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} command= words= at=1 i
  for ((i = 1; i < COMP_CWORD; i++)); do # behind the -- of mezzo launch stands another command
    [[ ${{COMP_WORDS[i]}} != -- ]] || at=$((i + 1))
  done
  command=${{COMP_WORDS[at]}}
  [[ $cur != = ]] || cur= # of --flag=value
  [[ $prev != = ]] || prev=${{COMP_WORDS[COMP_CWORD - 2]}}
  if ((COMP_CWORD == at)); then
    words='{1} --help --version'
  else
    case $command:$prev in
{2}    *) case $command:$cur in
{3}      esac ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o bashdefault -o default -F _mezzo mezzo
)",
                     MEZZO_VERSION, names_of(commands), of_values, of_flags);
}

std::string zsh_script(const std::vector<Command>& commands) {
  const auto quoted = [](const std::string& text) { return replaced(text, "'", "'\\''"); };
  std::string list, cases;
  for (const Command& command : commands) {
    list += fmt::format("    '{}:{}'\n", command.name, quoted(command.what));
    cases += fmt::format("    {})\n      _arguments", command.name);
    for (const Flag& flag : command.flags) {
      auto what = quoted(flag.what);
      for (const char* sign : {"[", "]", ":"}) what = replaced(what, sign, "\\" + std::string(sign));
      const std::string value = !flag.takes_value      ? ""
                                : flag.choices.empty() ? ":value:_files"
                                                       : fmt::format(":value:({})", fmt::join(flag.choices, " "));
      cases += fmt::format(" \\\n        '*{}[{}]{}'", flag.name, what, value);
    }
    cases += command.words.empty() ? " \\\n        '*:file:_files' ;;\n"
                                   : fmt::format(" \\\n        '1:word:({})' ;;\n", fmt::join(command.words, " "));
  }
  return fmt::format(R"(#compdef mezzo
# zsh completion of mezzo {0}
_mezzo() {{
  local -a commands=(
{1}  )
  local at=${{words[(i)--]}} # behind the -- of mezzo launch stands another command
  if ((at < CURRENT)); then
    words=(mezzo "${{(@)words[at + 1,-1]}}")
    ((CURRENT -= at - 1))
  fi
  if ((CURRENT == 2)); then
    _describe command commands
    return
  fi
  shift words
  ((CURRENT--))
  case $words[1] in
{2}  esac
}}
if [[ $funcstack[1] == _mezzo ]]; then
  _mezzo "$@"
else # by source, not from a folder of functions
  compdef _mezzo mezzo
fi
)",
                     MEZZO_VERSION, list, cases);
}

std::string fish_script(const std::vector<Command>& commands) {
  const auto quoted = [](const std::string& text) { return replaced(replaced(text, "\\", "\\\\"), "'", "\\'"); };
  std::string script = fmt::format(R"(# fish completion of mezzo {}
function __mezzo_command # behind the -- of mezzo launch stands another, of which fish completes no flags
  set -l words (commandline -opc)
  set -l at (contains -i -- -- $words; or echo 1)
  test (count $words) -gt $at; and echo $words[(math $at + 1)]
end
function __mezzo_is
  contains -- $argv[1] (__mezzo_command)
end
complete -c mezzo -n 'not __mezzo_command >/dev/null' -f
)",
                                   MEZZO_VERSION);
  for (const Command& command : commands) {
    script += fmt::format("complete -c mezzo -n 'not __mezzo_command >/dev/null' -a {} -d '{}'\n", command.name,
                          quoted(command.what));
    const std::string is_it = fmt::format("complete -c mezzo -n '__mezzo_is {}'", command.name);
    for (const Flag& flag : command.flags) {
      const std::string value = !flag.takes_value      ? ""
                                : flag.choices.empty() ? " -r"
                                                       : fmt::format(" -x -a '{}'", fmt::join(flag.choices, " "));
      script += fmt::format("{} -l {} -d '{}'{}\n", is_it, flag.name.substr(2), quoted(flag.what), value);
    }
    if (!command.words.empty()) {
      script += fmt::format("{} -f -a '{}'\n", is_it, fmt::join(command.words, " "));
    }
  }
  return script;
}

/// Text as troff takes it: signs that it would print as others by their names.
std::string troff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool begins_line = out.empty() || out.back() == '\n';
    switch (c) {
      case '\\': out += "\\(rs"; break;
      case '-': out += "\\-"; break;
      case '\'': out += "\\(aq"; break;
      case '`': out += "\\(ga"; break;
      case '^': out += "\\(ha"; break;
      case '~': out += "\\(ti"; break;
      case '.': out += begins_line ? "\\&." : "."; break;
      default: out += c;
    }
  }
  return out;
}

std::string manual_page(const CLI::App& program) {
  std::string page = fmt::format(
      ".\\\" -*- coding: utf-8 -*- Written by mezzo manual.\n.TH MEZZO 1 \"\" \"mezzo {0}\"\n.SH NAME\nmezzo \\- "
      "fine\\-tune text classifiers in mixed precision, and "
      "use them\n.SH SYNOPSIS\n.B mezzo\n.I COMMAND\n.RI [ OPTIONS ]\n.SH COMMANDS\n",
      MEZZO_VERSION);
  for (const CLI::App* app : shown_commands(program)) {
    page += fmt::format(".TP\n.B {}\n{}\n", app->get_name(), troff(app->get_description()));
  }
  for (const CLI::App* app : shown_commands(program)) {
    page += fmt::format(".SH MEZZO {}\n{}.\n", replaced(app->get_name(), "-", "\\-"), troff(app->get_description()));
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_group().empty()) continue;
      const bool takes_value = option->get_expected_max() > 0;
      const std::string name = option->get_positional() || option->get_lnames().empty()
                                   ? option->get_name()
                                   : "--" + option->get_lnames().front();
      page += fmt::format(
          ".TP\n.B {}{}\n{}\n", troff(name), takes_value && option->nonpositional() ? " \\fIVALUE\\fR" : "",
          troff(option->get_description() +
                (option->get_default_str().empty() ? "" : fmt::format(" (default: {})", option->get_default_str()))));
    }
    if (!app->get_footer().empty()) {
      page += ".PP\n.nf\n" + troff(app->get_footer()) + "\n.fi\n";
    }
  }
  return page;
}

}  // namespace

Run add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  notes_of(app.add_option("shell", *shell, "the shell")->required()->type_name("SHELL")).choices = {"bash", "zsh",
                                                                                                    "fish"};
  app.footer(
      "Examples:\n"
      "  source <(mezzo completion bash)                                  # for this shell\n"
      "  mezzo completion bash >~/.local/share/bash-completion/completions/mezzo\n"
      "  mezzo completion zsh >~/.zfunc/_mezzo                             # a folder of fpath\n"
      "  mezzo completion fish >~/.config/fish/completions/mezzo.fish");
  return [shell, &app] {
    const auto commands = commands_of(*app.get_parent());
    if (*shell == "bash") {
      text::write_stdout(bash_script(commands));
    } else if (*shell == "zsh") {
      text::write_stdout(zsh_script(commands));
    } else if (*shell == "fish") {
      text::write_stdout(fish_script(commands));
    } else {
      throw UsageError(fmt::format("'{}' is no shell that it knows; there are bash, zsh and fish", *shell));
    }
    return 0;
  };
}

Run add_manual(CLI::App& app) {
  return [&app] {
    text::write_stdout(manual_page(*app.get_parent()));
    return 0;
  };
}

}  // namespace mezzo::app
