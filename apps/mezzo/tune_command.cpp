#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "config_file.h"
#include "mezzo/text/io/standard_output.h"
#include "mezzo/text/machine/threads.h"
#include "mezzo/text/models/precision.h"
#include "mezzo/text/train/train_config.h"
#include "mezzo/text/tune/search.h"
#include "model_session.h"
#include "other_names.h"
#include "stop_signal.h"

namespace mezzo::app {
namespace {

using text::SearchedSetting, text::SearchOptions, text::Trial;
using Arguments = std::vector<std::string>;

struct TuneFlags {
  std::string config;
  SearchOptions options;
  bool is_dry = false;
};

/// Settings of mezzo train that a search sets itself, or that are not of one run.
constexpr const char* kOwn[] = {"output", "resume", "overwrite", "pause-at", "dry-run", "folds", "fold", "keep"};

/// The setting of mezzo train that a key means, without its dashes.
std::string name_of(std::string_view key, const CLI::App& train) {
  const auto options = find_flag(to_flag(key), train).sets();
  return (options.empty() ? to_flag(key) : options.back()).substr(2);
}

/// Settings that all trials must have in common to be compared, or to share the machine.
constexpr const char* kCommon[] = {"metric", "task", "device", "threads"};

void check_not_own(const std::string& name, const std::string& where) {
  if (std::ranges::find(kOwn, name) != std::end(kOwn)) {
    throw UsageError(
        fmt::format("{}: '{}' cannot be set for a search: the search sets it, or it is for single runs. "
                    "Leave it out",
                    where, name));
  }
}

const toml::table& table_of(const toml::table& file, const char* name, const std::string& path, const char* holds) {
  const toml::table* table = file[name].as_table();
  if (table == nullptr || table->empty()) {
    throw UsageError(fmt::format("{}: has no table [{}], {}", path, name, holds));
  }
  return *table;
}

/// `{min = 1e-5, max = 1e-4, log = true}`.
SearchedSetting range_of(const std::string& name, const toml::table& table, const std::string& where) {
  const auto low = table["min"].value<double>(), high = table["max"].value<double>();
  const bool is_log = table["log"].value_or(false);
  for (const auto& [key, value] : table) {
    const bool is_known = key == "min" || key == "max" ? value.is_number() : key == "log" && value.is_boolean();
    if (!is_known) {
      throw UsageError(fmt::format(
          "{}: '{}' of '{}' does not fit. A range has min and max (numbers), and may have log (true or false)", where,
          key.str(), name));
    }
  }
  if (!low || !high || *low >= *high || (is_log && *low <= 0)) {
    throw UsageError(fmt::format("{}: '{}' needs a min below its max{}", where, name, is_log ? ", both above 0" : ""));
  }
  return {.name = name,
          .low = *low,
          .high = *high,
          .is_log = is_log,
          .is_whole = table["min"].is_integer() && table["max"].is_integer()};
}

/// All that a setting may be, or its ends, is something that mezzo train takes.
SearchedSetting searched(const std::string& key,
                         const toml::node& value,
                         const CLI::App& train,
                         const std::string& where) {
  const std::string name = name_of(key, train);
  check_not_own(name, where);
  if (std::ranges::find(kCommon, name) != std::end(kCommon)) {
    throw UsageError(fmt::format("{}: '{}' must be the same for all trials; put it into [train]", where, key));
  }
  if (const auto* table = value.as_table()) {
    auto range = range_of(name, *table, where);
    for (const double share : {0.0, 0x1.fffffffffffffp-1}) {
      to_arguments(key, toml::value<std::string>(range.value_at(share)), train, where);
    }
    return range;
  }
  SearchedSetting setting{.name = name};
  const auto* array = value.as_array();
  if (array == nullptr || array->empty()) {
    throw UsageError(
        fmt::format("{}: '{}' must be an array of values, or a range such as "
                    "{{min = 1e-5, max = 1e-4, log = true}}",
                    where, key));
  }
  for (const toml::node& element : *array) {
    const auto arguments = to_arguments(key, element, train, where);
    if (arguments.size() != 1 || !arguments.front().starts_with("--" + name + "=")) {
      throw UsageError(fmt::format("{}: '{}' cannot be searched: it is a switch, or takes several", where, key));
    }
    setting.values.push_back(arguments.front().substr(arguments.front().find('=') + 1));
  }
  return setting;
}

/// One name, or several.
std::vector<std::filesystem::path> files_of(const toml::node& value) {
  std::vector<std::filesystem::path> files;
  if (const auto* one = value.as_string()) files.emplace_back(one->get());
  if (const auto* several = value.as_array()) {
    for (const toml::node& file : *several) files.emplace_back(file.value_or(std::string()));
  }
  return files;
}

Arguments with_output(Arguments arguments, const std::filesystem::path& output) {
  arguments.insert(arguments.end(), {"--output", output.string()});
  return arguments;
}

/// Every value, or both ends of a range, is one that mezzo train takes, whether it is drawn or not.
void check_values(const SearchedSetting& setting, const Arguments& fixed, const std::string& where) {
  auto values = setting.values;
  if (values.empty()) {
    values = {setting.value_at(0), setting.value_at(0x1.fffffffffffffp-1)};
  }
  for (const std::string& value : values) {
    try {
      auto arguments = fixed;
      arguments.push_back(fmt::format("--{}={}", setting.name, value));
      check_train_arguments(std::move(arguments));
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("{}: {}", where, error.what()));
    }
  }
}

/// The flags that all trials share, of the table [train]; fills in the searched settings.
Arguments read_tables(TuneFlags& flags, const CLI::App& train) {
  const auto file = parse_config(flags.config);
  const auto where = [&](const toml::node& node) {
    return fmt::format("{}:{}", flags.config, node.source().begin.line);
  };
  for (const auto& [key, value] : file) {
    if (value.is_table() && key != "train" && key != "search") {
      throw UsageError(
          fmt::format("{}: [{}] is not a table of a search, which has [train] and [search]", where(value), key.str()));
    }
  }
  Arguments fixed;
  std::vector<std::string> names;
  const auto check_new = [&](const toml::key& key, const toml::node& value) {
    names.push_back(name_of(key.str(), train));
    if (std::ranges::count(names, names.back()) > 1) {
      throw UsageError(fmt::format("{}: '{}' occurs twice; remove one", where(value), key.str()));
    }
  };
  const auto& common = table_of(file, "train", flags.config, "which holds the settings of mezzo train for all trials");
  for (const auto& [key, value] : common) {
    check_new(key, value);
    check_not_own(names.back(), where(value));
    const auto arguments = to_arguments(std::string(key.str()), value, train, where(value));
    fixed.insert(fixed.end(), arguments.begin(), arguments.end());
    if (names.back() == "train" || names.back() == "dev" || names.back() == "test") {
      const auto paths = files_of(value);
      flags.options.files.insert(flags.options.files.end(), paths.begin(), paths.end());
    }
    flags.options.recipe.emplace_back(names.back(), fmt::format("{}", fmt::join(arguments, " ")));
  }
  const auto& space = table_of(file, "search", flags.config, "which holds the settings to try");
  for (const auto& [key, value] : space) {
    check_new(key, value);
    flags.options.settings.push_back(searched(std::string(key.str()), value, train, where(value)));
    check_values(flags.options.settings.back(), with_output(fixed, flags.options.output / "trials"), where(value));
  }
  return fixed;
}

/// Prints the warnings about the texts. mezzo train writes them to the log of each trial.
void print_data_warnings(const Arguments& arguments) {
  auto config = check_train_arguments(arguments);
  config.model = find_model(config.model);
  for (const std::string& line : text::data_warnings(config)) {
    std::fputs((line + "\n").c_str(), stderr);
  }
}

void show_trials(SearchOptions options, const std::vector<Trial>& trials) {
  std::string out;
  if (std::ssize(trials) < options.trials) {
    out += fmt::format("{}: no other combinations exist\n",
                       trials.size() == 1 ? "1 trial" : fmt::format("{} trials", trials.size()));
    options.trials = std::ssize(trials);
  }
  const auto rungs = text::search_rungs(options);
  for (const Trial& trial : trials) {
    out += fmt::format("trial {}:", trial.number);
    for (const auto& [name, value] : trial.settings) {
      out += fmt::format(" --{} {}", name, value);
    }
    out += "\n";
  }
  double runs = 0, before = 0;
  for (size_t rung = 0; rung < rungs.size(); ++rung) {
    const auto count = text::trials_of_rung(options, rung);
    out += fmt::format("{} trained to {:.0f} % of the steps\n", count, 100 * rungs[rung]);
    runs += static_cast<double>(count) * (rungs[rung] - std::exchange(before, rungs[rung]));
  }
  text::write_stdout(out + fmt::format("together the steps of {:.1f} whole runs\n", runs));
}

void check_ranges(const SearchOptions& options) {
  const auto check = [](const char* flag, auto value, auto least, auto most) {
    if (!(value >= least && value <= most)) {  // NaN
      throw UsageError(fmt::format("{} is {}, expected {} to {}", flag, value, least, most));
    }
  };
  check("--trials", options.trials, 1, 10'000);
  check("--parallel", options.parallel, 0, 1000);
  check("--halving", options.halving, 1, 1000);
  check("--least-share", options.least_share, 0.001, 1.0);
  check("--keep", options.keep, 1, 10'000);
}

int run_tune(TuneFlags flags, const CLI::App& app) {
  SearchOptions& options = flags.options;
  check_ranges(options);
  if (std::getenv("WORLD_SIZE") != nullptr) {
    throw UsageError("a search starts its trials itself; run it without mezzo launch and torchrun (WORLD_SIZE is set)");
  }
  const Arguments fixed = read_tables(flags, *app.get_parent()->get_subcommand("train"));
  const bool sets_threads =
      std::ranges::any_of(fixed, [](const std::string& argument) { return argument.starts_with("--threads="); });
  const int64_t cores = text::usable_processors();
  if (options.parallel == 0) {
    constexpr int64_t kCoresOfATrial = 4;
    const auto device = text::parse_device(check_train_arguments(with_output(fixed, options.output)).device);
    options.parallel = device.is_cpu() ? std::max<int64_t>(1, cores / kCoresOfATrial) : 1;
  }
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const auto arguments_of = [=, parallel = options.parallel](const Trial& trial, const std::filesystem::path& folder) {
    Arguments arguments = fixed;
    for (const auto& [name, value] : trial.settings) {
      arguments.push_back(fmt::format("--{}={}", name, value));
    }
    if (!sets_threads) {
      arguments.push_back(fmt::format("--threads={}", std::max<int64_t>(1, cores / parallel)));
    }
    arguments.insert(arguments.end(), {"--output", folder.string(), "--resume", "auto", "--keep", "1"});
    return arguments;
  };
  options.command = [=, has_warned = false](const Trial& trial, const std::filesystem::path& folder,
                                            double share) mutable {
    Arguments command = arguments_of(trial, folder);
    try {
      if (!std::exchange(has_warned, true)) print_data_warnings(command);
    } catch (const c10::Error&) {  // each trial reports this error
    }
    command.insert(command.begin(), {program, "train"});
    command.push_back(fmt::format("--pause-at={}", share));
    return command;
  };
  const auto trials = text::draw_trials(options);
  for (const Trial& trial : trials) {
    if (!check_train_arguments(arguments_of(trial, options.output / "trials" / std::to_string(trial.number)))
             .has_dev()) {
      throw UsageError("a search compares trials on dev: set dev or dev-ratio in [train]");
    }
  }
  if (flags.is_dry) {
    print_data_warnings(arguments_of(trials.front(), options.output / "trials"));
    show_trials(options, trials);
    return 0;
  }
  catch_stop_signals();
  std::signal(SIGPIPE, SIG_IGN);  // the reader of the output may go away
  options.stop_requested = [] { return stop_signal() != 0; };
  const auto result = as_usage([&] { return text::search(options); });
  if (!result.finished) {
    text::write_stdout("stopped; the same command resumes it\n");
    return 128 + stop_signal();
  }
  const Trial& best = result.trials.front();
  std::string settings;
  for (const auto& [name, value] : best.settings) {
    settings += fmt::format(" --{} {}", name, value);
  }
  const double score = best.scores.back().value;
  text::write_stdout(fmt::format(
      "best: trial {}, {} {}:{}\nmodel: {}\nreport: {}\nnext: mezzo eval --model {} …\n", best.number, result.metric,
      std::isnan(score) ? "NaN" : fmt::format("{:.4f}", score), settings,
      (options.output / "trials" / std::to_string(best.number)).string(), (options.output / "report.html").string(),
      text::shell_quoted((options.output / "trials" / std::to_string(best.number)).string())));
  return 0;
}

}  // namespace

Run add_tune(CLI::App& app) {
  auto flags = std::make_shared<TuneFlags>();
  SearchOptions& options = flags->options;
  options.parallel = 0;
  app.add_option("--config", flags->config,
                 "TOML file: [train] for the settings of all trials, [search] for the others")
      ->required()
      ->type_name("FILE");
  app.add_option("--output", options.output, "folder of the search; an existing search is resumed")
      ->required()
      ->type_name("DIR");
  app.add_option("--trials", options.trials, "number of trials")->capture_default_str();
  app.add_option("--parallel", options.parallel, "trials at the same time; 0: one for four cores, or one on a GPU")
      ->capture_default_str();
  app.add_option("--halving", options.halving, "reduction factor of successive halving; 1: no trial ends early")
      ->capture_default_str();
  app.add_option("--least-share", options.least_share, "least share of its steps that each trial is trained")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "seed of the draw of settings")->capture_default_str();
  app.add_option("--keep", options.keep, "number of models to keep, the best first")->capture_default_str();
  app.add_flag("--dry-run", flags->is_dry, "show the trials, and train nothing");
  app.footer(
      "Examples:\n"
      "  mezzo tune --config search.toml --output out\n"
      "  mezzo tune --config search.toml --output out --trials 30 --parallel 2\n\n"
      "search.toml:\n"
      "  [train]\n"
      "  model = \"DIR\"\n"
      "  train = \"train.jsonl\"\n"
      "  dev = \"dev.jsonl\"\n"
      "  [search]\n"
      "  learning-rate = {min = 1e-5, max = 1e-4, log = true}\n"
      "  batch-size = [16, 32]\n"
      "  epochs = [2, 3, 4]\n\n"
      "Exit status: 0 all trials are done; 1 failed; 2 wrong usage; 129, 130 or 143\n"
      "stopped by a signal. The same command goes on, and tries failed trials again.");
  return [flags, &app] { return run_tune(*flags, app); };
}

}  // namespace mezzo::app
