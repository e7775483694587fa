#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "mezzo/text/io/nearest_name.h"
#include "mezzo/text/io/standard_output.h"
#include "mezzo/version.h"

namespace mezzo::app {
namespace {

using Options = std::vector<const CLI::Option*>;

Options flags_of(const CLI::App& app) {
  return app.get_options(
      [](const CLI::Option* option) { return option->nonpositional() && !option->get_group().empty(); });
}

/// The words that a command takes in place of a flag.
std::vector<std::string> words_of(const CLI::App& app) {
  const auto positional = app.get_options([](const CLI::Option* option) { return option->get_positional(); });
  return positional.empty() ? std::vector<std::string>() : notes_of(positional.front()).choices;
}

std::string name_of(const CLI::Option* option) { return option->get_lnames().front(); }

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
  return text;
}

/// The completion of the value of `flag`: nothing for a switch, `files`, or its choices in `format`.
std::string value_of(const CLI::Option& flag, const std::string& files, const char* format) {
  const auto& choices = notes_of(&flag).choices;
  if (flag.get_expected_max() == 0) return "";
  return choices.empty() ? files : fmt::format(fmt::runtime(format), fmt::join(choices, " "));
}

/// Arguments other than flags and their values are left to bash: files.
std::string bash_script(const std::vector<const CLI::App*>& commands) {
  std::string of_values, of_flags;
  std::vector<std::string> names;
  for (const CLI::App* command : commands) {
    const std::string& name = names.emplace_back(command->get_name());
    std::string flags;
    for (const CLI::Option* flag : flags_of(*command)) {
      flags += " --" + name_of(flag);
      if (const auto& choices = notes_of(flag).choices; !choices.empty()) {
        of_values += fmt::format("    {}:--{}) words='{}' ;;\n", name, name_of(flag), fmt::join(choices, " "));
      }
    }
    of_flags += fmt::format("      {}:-*) words='{}' ;;\n", name, flags.substr(1));
    if (const auto words = words_of(*command); !words.empty()) {
      of_flags += fmt::format("      {}:*) words='{}' ;;\n", name, fmt::join(words, " "));
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
    words='{1} --help --help-all --version'
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
                     MEZZO_VERSION, fmt::join(names, " "), of_values, of_flags);
}

std::string zsh_script(const std::vector<const CLI::App*>& commands) {
  const auto quoted = [](const std::string& text) { return replaced(text, "'", "'\\''"); };
  std::string list, cases;
  for (const CLI::App* command : commands) {
    list += fmt::format("    '{}:{}'\n", command->get_name(), quoted(command->get_description()));
    cases += fmt::format("    {})\n      _arguments", command->get_name());
    for (const CLI::Option* flag : flags_of(*command)) {
      auto what = quoted(flag->get_description());
      for (const char* sign : {"[", "]", ":"}) what = replaced(what, sign, "\\" + std::string(sign));
      cases += fmt::format(" \\\n        '*--{}[{}]{}'", name_of(flag), what,
                           value_of(*flag, ":value:_files", ":value:({})"));
    }
    const auto words = words_of(*command);
    cases += words.empty() ? " \\\n        '*:file:_files' ;;\n"
                           : fmt::format(" \\\n        '1:word:({})' ;;\n", fmt::join(words, " "));
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

std::string fish_script(const std::vector<const CLI::App*>& commands) {
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
  for (const CLI::App* command : commands) {
    script += fmt::format("complete -c mezzo -n 'not __mezzo_command >/dev/null' -a {} -d '{}'\n", command->get_name(),
                          quoted(command->get_description()));
    const std::string is_it = fmt::format("complete -c mezzo -n '__mezzo_is {}'", command->get_name());
    for (const CLI::Option* flag : flags_of(*command)) {
      script += fmt::format("{} -l {} -d '{}'{}\n", is_it, name_of(flag), quoted(flag->get_description()),
                            value_of(*flag, " -r", " -x -a '{}'"));
    }
    if (const auto words = words_of(*command); !words.empty()) {
      script += fmt::format("{} -f -a '{}'\n", is_it, fmt::join(words, " "));
    }
  }
  return script;
}

/// The help of all commands, as it is.
std::string manual_page(const CLI::App& program) {
  std::string page = fmt::format(
      ".\\\" -*- coding: utf-8 -*- Written by mezzo manual.\n.TH MEZZO 1 \"\" \"mezzo {0}\"\n.SH NAME\nmezzo \\- "
      "fine\\-tune text classifiers in mixed precision, and use them\n",
      MEZZO_VERSION);
  const auto add = [&](const std::string& heading, const CLI::App& app) {
    std::string text = replaced(replaced(help_text(app, /*shows_all=*/true), "\\", "\\(rs"), "-", "\\-");
    text = replaced(replaced(replaced(text, "'", "\\(aq"), "~", "\\(ti"), "\n.", "\n\\&.");
    page += fmt::format(".SH {}\n.nf\n.in 0\n{}.fi\n", replaced(heading, "-", "\\-"), text);
  };
  add("SYNOPSIS", program);
  for (const CLI::App* app : shown_commands(program)) add("MEZZO " + app->get_name(), *app);
  return page;
}

}  // namespace

Run add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  notes_of(app.add_option("shell", *shell, "the shell")->required()->type_name("SHELL")).choices = {"bash", "zsh",
                                                                                                    "fish"};
  app.footer(
      "Examples:\n"
      "  source <(mezzo completion bash)                    # for this shell\n"
      "  mezzo completion bash >~/.local/share/bash-completion/completions/mezzo\n"
      "  mezzo completion zsh >~/.zfunc/_mezzo              # a folder of fpath\n"
      "  mezzo completion fish >~/.config/fish/completions/mezzo.fish");
  return [shell, &app] {
    const auto commands = shown_commands(*app.get_parent());
    if (*shell == "bash") {
      text::write_stdout(bash_script(commands));
    } else if (*shell == "zsh") {
      text::write_stdout(zsh_script(commands));
    } else if (*shell == "fish") {
      text::write_stdout(fish_script(commands));
    } else {
      throw UsageError(fmt::format("'{}' is not a known shell; pass bash, zsh or fish", *shell));
    }
    return 0;
  };
}

Run add_help(CLI::App& app) {
  auto name = std::make_shared<std::string>();
  const auto names = command_names(*app.get_parent());
  notes_of(app.add_option("command", *name, "the command; without it, all of them")->type_name("COMMAND")).choices =
      names;
  return [name, names, &app] {
    const CLI::App* of = name->empty() ? app.get_parent() : find_command(*app.get_parent(), *name);
    if (of == nullptr)
      throw UsageError(fmt::format("'{}' is not a command.{}", *name, text::did_you_mean(*name, names)));
    text::write_stdout(help_text(*of, /*shows_all=*/false));
    return 0;
  };
}

Run add_version(CLI::App&) {
  return [] {
    text::write_stdout("mezzo " MEZZO_VERSION "\n");
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
