#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "mezzo/text/io/standard_output.h"
#include "mezzo/text/models/precision.h"
#include "mezzo/text/train/folds.h"
#include "mezzo/text/train/settings.h"
#include "mezzo/text/train/train_config.h"
#include "mezzo/text/train/trainer.h"
#include "model_session.h"
#include "ranks.h"
#include "stop_signal.h"

namespace mezzo::app {
namespace {

using text::Setting;
using text::TrainConfig;

struct TrainFlags {
  TrainConfig config;
  std::string config_file;
};

template <class Number>
std::string what_it_may_be(const Setting& setting) {
  return std::is_integral_v<Number> ? "a whole number"
                                    : fmt::format("a number from {} to {}", setting.least(), setting.most());
}

/// Makes a flag of each setting.
class AddSetting {
 public:
  explicit AddSetting(CLI::App& app) : app_(app) {}

  void operator()(const Setting& setting, bool& field) const { describe(setting, app_.add_flag(flag(setting), field)); }

  template <class T>
  void operator()(const Setting& setting, T& field) const {
    add(setting, field);
  }

  void operator()(const Setting& setting, text::StepInterval& field) const {
    add_text(setting, field.text(),
             [setting, &field](const std::string& text) { field = parse_interval(setting, text); });
  }

  void operator()(const Setting& setting, std::optional<text::StepInterval>& field) const {
    add_text(setting, std::string(setting.none()), [setting, &field](const std::string& text) {
      field = text == setting.none() ? std::nullopt : std::optional(parse_interval(setting, text));
    });
  }

  template <class Number>
  void operator()(const Setting& setting, std::optional<Number>& field) const {
    if (!setting.takes_none()) {
      add(setting, field);
      return;
    }
    const auto set = [setting, &field](const std::string& text) {
      field = parse_number<Number>(text);
      const bool is_finite = !field || std::isfinite(static_cast<double>(*field));
      if ((!field || !is_finite) && text != setting.none()) {
        throw UsageError(fmt::format("{} '{}' is neither '{}' nor {}", flag(setting), text, setting.none(),
                                     what_it_may_be<Number>(setting)));
      }
    };
    add_text(setting, field ? fmt::format("{}", *field) : std::string(setting.none()), set);
  }

 private:
  static std::string flag(const Setting& setting) { return "--" + std::string(setting.name()); }

  static text::StepInterval parse_interval(const Setting& setting, const std::string& text) {
    return as_usage([&] { return text::StepInterval::parse(flag(setting), text); });
  }

  void add_text(const Setting& setting,
                const std::string& default_text,
                const std::function<void(const std::string&)>& set) const {
    describe(setting, app_.add_option_function<std::string>(flag(setting), set))->default_str(default_text);
  }

  static CLI::Option* describe(const Setting& setting, CLI::Option* option) {
    notes_of(option) = {setting.choices(), setting.is_basic(), setting.is_required()};
    if (!setting.metavar().empty()) option->type_name(std::string(setting.metavar()));
    return option->description(std::string(setting.help()))->group(std::string(setting.group()));
  }

  template <class T>
  void add(const Setting& setting, T& field) const {
    CLI::Option* option = describe(setting, app_.add_option(flag(setting), field));
    constexpr bool is_path =
        std::is_same_v<T, std::filesystem::path> || std::is_same_v<T, std::vector<std::filesystem::path>>;
    if (is_path && setting.metavar().empty()) option->type_name("FILE");
    if constexpr (requires { field.empty(); }) {
      if (field.empty()) {
        return;
      }
    }
    option->capture_default_str();
  }

  CLI::App& app_;
};

void check(TrainConfig& config) {
  if (config.max_steps == -1) config.max_steps.reset();  // transformers' default
  as_usage([&] { config.validate(); });
}

int run_train(TrainFlags& flags) {
  const bool trains_folds = flags.config.folds > 0 && flags.config.fold == 0;
  check(flags.config);
  catch_stop_signals();
  std::signal(SIGPIPE, SIG_IGN);  // the reader of the output may go away
  const auto timeout = std::chrono::seconds(flags.config.timeout);
  flags.config.model = find_model(flags.config.model, text::ModelFiles::kAll, flags.config.quiet);
  return with_ranks(flags.config.device, timeout, [&](distributed::ProcessGroup* group) {
    const auto stop_requested = [] { return stop_signal() != 0; };
    const auto status = [](bool finished, bool saves_failed) {
      // The signal may have come to another rank.
      const int stopped = 128 + (stop_signal() != 0 ? stop_signal() : SIGTERM);
      return !finished ? stopped : saves_failed ? kNotAllSaved : 0;
    };
    if (trains_folds) {
      const auto result = text::train_folds(flags.config, stop_requested, group);
      if (result.finished && is_main(group) && !flags.config.quiet) {
        text::write_stdout("\n" + result.table());
        text::flush_stdout();
      }
      return status(result.finished, result.saves_failed);
    }
    const auto result = text::train(flags.config, stop_requested, group);
    return status(result.finished || result.paused, result.saves_failed);
  });
}

/// CLI11 applies options in the order of their declaration, so all other settings win over the recipe.
void add_recipe(CLI::App& app, TrainFlags& flags) {
  CLI::Option* option = app.add_option_function<std::string>(
      "--recipe", [&flags](const std::string& name) { as_usage([&] { text::apply_recipe(flags.config, name); }); },
      "defaults to start from; reference: 1 epoch, constant 3e-5, 128 tokens, no clipping");
  option->group("Recipe")->default_str("default");
  notes_of(option).choices = text::recipe_names();
}

void add_flags(CLI::App& app, TrainFlags& flags) {
  add_recipe(app, flags);
  text::visit_settings(flags.config, AddSetting(app));
  app.add_option("--config", flags.config_file, "TOML file of settings, or the run.json of a run to repeat; flags win")
      ->type_name("FILE")
      ->group("Run");
}

}  // namespace

TrainConfig check_train_arguments(std::vector<std::string> arguments) {
  CLI::App app("", "mezzo");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  TrainFlags flags;
  add_flags(*app.add_subcommand("train"), flags);
  arguments.insert(arguments.begin(), "train");
  parse_command_line(app, std::move(arguments));
  check(flags.config);
  return flags.config;
}

Run add_train(CLI::App& app) {
  auto flags = std::make_shared<TrainFlags>();
  add_flags(app, *flags);
  app.footer(
      "Examples:\n"
      "  mezzo train --model bert-base-uncased --train train.csv --output out\n"
      "  mezzo train --model DIR --train train.jsonl --dev dev.jsonl --output out\n"
      "  mezzo train --config run.toml --learning-rate 2e-5\n"
      "  mezzo train --config out/run.json --output again\n\n"
      "Exit status: 0 trained, paused or already finished; 1 failed; 2 wrong usage;\n"
      "3 trained, but a checkpoint could not be saved; 129, 130, 138 or 143 stopped by\n"
      "a signal, with a checkpoint saved.");
  return [flags] { return run_train(*flags); };
}

}  // namespace mezzo::app
