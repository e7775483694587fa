#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "config_file.h"
#include "mezzo/memory/cpu_memory_pool.h"
#include "mezzo/text/hub/hub.h"
#include "mezzo/text/io/error_message.h"
#include "mezzo/text/io/failure_record.h"
#include "mezzo/text/io/standard_output.h"
#include "mezzo/version.h"
#include "other_names.h"
#include "stop_signal.h"

namespace {

using mezzo::app::kFailed, mezzo::app::kWrongUsage;
using mezzo::app::Run;
using mezzo::app::UsageError;

/// A message as one line, as errors are by contract, whatever the names that it quotes are made of.
/// LibTorch may add where in its sources it was.
std::string one_line(const std::string& message) {
  std::string line;
  for (const char c : message.substr(0, message.find("\nException raised from"))) {
    const bool is_control = static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
    line += c == '\n' || c == '\t' ? " " : is_control ? "" : std::string(1, c);
  }
  return line;
}

/// On stderr, which may be full or closed: what cannot be said there is let go.
void say(const std::string& who, const std::string& message) {
  std::fputs(fmt::format("{}: {}\n", who, one_line(message)).c_str(), stderr);
}

/// Says why the program failed, to the user and to the launcher.
void fail(const std::string& who, const std::string& message) {
  say(who, message);
  mezzo::text::record_failure(who + ": " + one_line(message));
}

/// Ends as filters do whose reader goes away (`mezzo predict … | head -1`), whatever
/// the caller set for SIGPIPE.
int end_by_broken_pipe() {
  std::signal(SIGPIPE, SIG_DFL);
  std::raise(SIGPIPE);
  return 128 + SIGPIPE;
}

int run(int argc, char** argv) {
  CLI::App app("Fine-tune text classifiers in mixed precision.", "mezzo");
  app.set_help_flag("-h,--help", "show the options that most people need");
  app.set_help_all_flag("--help-all", "show all options");
  app.set_version_flag("--version", "mezzo " MEZZO_VERSION)->description("show the version");
  app.formatter_fn([](const CLI::App* of, const std::string&, CLI::AppFormatMode mode) {
    return mezzo::app::help_text(*of, mode == CLI::AppFormatMode::All);
  });
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  const auto command = [&](const char* group, const char* name, const char* what, Run (*add)(CLI::App&)) {
    CLI::App* sub = app.add_subcommand(name, what)->group(group);
    return std::pair(sub, add(*sub));
  };
  constexpr const char *kTrain = "Train a model", *kUse = "Use a model", *kOther = "Other commands", *kHidden = "";
  const std::vector<std::pair<CLI::App*, Run>> commands = {
      command(kTrain, "train", "Fine-tune a model on labelled texts", mezzo::app::add_train),
      command(kTrain, "tune", "Search for the settings to train with", mezzo::app::add_tune),
      command(kTrain, "compare", "Compare runs, and test their models on the same texts", mezzo::app::add_compare),
      command(kTrain, "launch", "Train in several processes", mezzo::app::add_launch),
      command(kUse, "predict", "Label texts", mezzo::app::add_predict),
      command(kUse, "eval", "Measure a model on labelled texts", mezzo::app::add_eval),
      command(kUse, "serve", "Answer HTTP requests with the labels of texts", mezzo::app::add_serve),
      command(kUse, "export", "Write a model as ONNX, for other programs", mezzo::app::add_export),
      command(kUse, "check-int8", "Compare a model in int8 with fp32 on labelled texts", mezzo::app::add_check_int8),
      command(kUse, "tokenize", "Show the token ids of texts", mezzo::app::add_tokenize),
      command(kOther, "doctor", "Examine this machine, and advise a precision", mezzo::app::add_doctor),
      command(kOther, "ops", "List the ops and their precisions under autocast", mezzo::app::add_ops),
      command(kOther, "completion", "Print a script that makes a shell complete commands", mezzo::app::add_completion),
      command(kOther, "version", "Show the version", mezzo::app::add_version),
      command(kOther, "help", "Show the options of a command", mezzo::app::add_help),
      command(kHidden, "manual", "Print the manual page", mezzo::app::add_manual),
  };

  std::vector<std::string> arguments(argv + 1, argv + argc);
  mezzo::app::rename_command(arguments);
  const CLI::App* asked = arguments.empty() ? nullptr : mezzo::app::find_command(app, arguments.front());
  const std::string who = asked != nullptr ? "mezzo " + asked->get_name() : "mezzo";
  try {
    mezzo::check_libtorch_version();
    mezzo::use_cpu_memory_pool();
    int status = 0;
    if (const auto text = mezzo::app::parse_command_line(app, arguments)) {
      mezzo::text::write_stdout(*text);
    } else {
      status =
          std::find_if(commands.begin(), commands.end(), [&](const auto& one) { return one.first == asked; })->second();
    }
    mezzo::text::flush_stdout();
    return status;
  } catch (const mezzo::text::OutputClosed&) {
    return end_by_broken_pipe();
  } catch (const UsageError& error) {
    const std::string place = asked != nullptr ? mezzo::app::place_in_config_file(arguments, error.what(), *asked) : "";
    fail(who, place + error.what());
    return kWrongUsage;
  } catch (const mezzo::text::DownloadStopped& error) {
    say(who, error.what());
    return 128 + mezzo::app::stop_signal();
  } catch (const std::bad_alloc&) {
    fail(who, "out of memory: this machine has no memory left, or the limit of this process is reached");
  } catch (const std::exception& error) {
    fail(who, mezzo::text::message_of(error));
  }
  return kFailed;
}

/// LibTorch's warnings, without its source lines.
struct WarningHandler : c10::WarningHandler {
  void process(const c10::Warning& warning) override { say("warning", warning.msg()); }
};

/// Opens a standard file that this process was started without, so that no other file can get its
/// number and the printed output. Using it fails as before: it is open the wrong way round.
void hold_places_of_standard_files() {
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(file, F_GETFD) < 0) {
      static_cast<void>(::open("/dev/null", file == STDIN_FILENO ? O_WRONLY : O_RDONLY));  // takes the lowest number
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  hold_places_of_standard_files();
  std::signal(SIGXFSZ, SIG_IGN);  // a file above the limit that was set fails to be written, as on a full disk
  // c10d tells of every socket that breaks, with a backtrace. What broke is said
  // by the error that follows.
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  }
  WarningHandler warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  const int status = run(argc, argv);
  // What LibTorch registered with itself at its start it would now take back piece by piece.
  std::quick_exit(status);
}
