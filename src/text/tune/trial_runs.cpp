#include "text/tune/trial_runs.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;
using distributed::ChildProcess;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<std::string> environment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  return variables;
}

UniqueFd open_file(const fs::path& path, int flags) {
  UniqueFd file(::open(path.c_str(), flags | O_CLOEXEC, 0666));
  TORCH_CHECK(file.get() >= 0, path.string(), ": cannot be opened: ", std::strerror(errno), ".");
  return file;
}

}  // namespace

fs::path folder_of(const SearchOptions& options, const Trial& trial) {
  return options.output / "trials" / std::to_string(trial.number);
}

fs::path log_of(const SearchOptions& options, const Trial& trial) {
  return options.output / "logs" / (std::to_string(trial.number) + ".txt");
}

void TrialRuns::start(Trial& trial, double share) {
  const auto log = open_file(log_of(options_, trial), O_WRONLY | O_CREAT | O_APPEND),
             nothing = open_file("/dev/null", O_RDONLY);
  runs_.push_back({&trial, now(),
                   ChildProcess(options_.command(trial, folder_of(options_, trial), share), environment(),
                                {.in = nothing.get(), .out = log.get(), .err = log.get()})});
}

std::optional<TrialRuns::Outcome> TrialRuns::wait() {
  constexpr auto kBetweenLooks = std::chrono::milliseconds(100);
  while (!runs_.empty()) {
    if (!is_stopping_ && options_.stop_requested && options_.stop_requested()) {
      is_stopping_ = true;
      for (const Run& run : runs_) {
        run.process.signal_group(SIGTERM);  // each saves a checkpoint
      }
    }
    const auto ended =
        std::ranges::find_if(runs_, [](Run& run) { return run.process.next_change() == ChildProcess::Change::kEnded; });
    if (ended != runs_.end()) {
      const Outcome outcome{ended->trial, *ended->process.end(), now() - ended->started};
      std::vector<Run> others;
      for (Run& run : runs_) {
        if (run.trial != outcome.trial) {
          others.push_back(std::move(run));
        }
      }
      std::swap(runs_, others);
      return outcome;
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return std::nullopt;
}

std::string last_line(const fs::path& log) {
  constexpr std::streamoff kMost = 4096;
  std::ifstream file(log, std::ios::binary | std::ios::ate);
  const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : 0;
  std::string end(static_cast<size_t>(std::min(size, kMost)), '\0');
  file.seekg(size - std::ssize(end));
  file.read(end.data(), std::ssize(end));
  const size_t last = end.find_last_not_of(" \n\r");
  if (!file || last == std::string::npos) {
    return "";
  }
  end.resize(last + 1);
  const size_t feed = end.find_last_of("\n\r");
  return feed == std::string::npos ? end : end.substr(feed + 1);
}

void remove_weights(const fs::path& folder) {
  std::error_code error;
  fs::remove(folder / "model.safetensors", error);
  fs::remove_all(folder / "checkpoints", error);
  TORCH_CHECK(!error, (folder / "checkpoints").string(), ": cannot be removed: ", error.message(), ".");
}

}  // namespace mezzo::text
