#pragma once

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "mezzo/text/train/train_config.h"

/// The commands of the program `mezzo`: each adds its flags to `app` and returns what to do once
/// they are parsed. That returns the exit status.
namespace mezzo::app {

/// Exit statuses beside 0. Stopped by signal N, a run ends with 128 + N.
constexpr int kFailed = 1, kWrongUsage = 2;
constexpr int kNotAllSaved = 3;  // trained to the end, but a checkpoint in between could not be saved

/// The command line is wrong: one line on stderr, exit status 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What `work` throws about a value is a mistake on the command line.
template <class Work>
auto as_usage(Work&& work) {
  try {
    return work();
  } catch (const c10::ValueError& error) {
    throw UsageError(error.what_without_backtrace());
  }
}

using Run = std::function<int()>;

Run add_train(CLI::App& app);
Run add_eval(CLI::App& app);
Run add_predict(CLI::App& app);
Run add_tokenize(CLI::App& app);
Run add_export(CLI::App& app);
Run add_check_int8(CLI::App& app);
Run add_ops(CLI::App& app);
Run add_completion(CLI::App& app);
Run add_manual(CLI::App& app);
Run add_help(CLI::App& app);  ///< after all commands that it names
Run add_version(CLI::App& app);
Run add_doctor(CLI::App& app);
Run add_compare(CLI::App& app);
Run add_serve(CLI::App& app);
Run add_launch(CLI::App& app);
Run add_tune(CLI::App& app);

/// The run that `mezzo train` would make of some arguments.
/// @throws UsageError  that says why it would not begin
text::TrainConfig check_train_arguments(std::vector<std::string> arguments);

/// Takes the command that `mezzo launch` runs out of `arguments`, and the `--` before it. Empty if there is none, and
/// for other commands than launch. Its words are not for this program to read.
std::vector<std::string> take_launched_command(std::vector<std::string>& arguments, const CLI::App& app);

}  // namespace mezzo::app
