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

#include "mezzo/text/io/safetensors.h"
#include "text/checkpoint/checkpoint_store.h"
#include "text/train/run_lock.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;

constexpr auto kBetweenLooks = std::chrono::milliseconds(100);
constexpr double kSecondsToEnd = 60;  // that a process may take which was told to

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
  const double deadline = now() + kSecondsToEnd;
  while (is_at_work(folder_of(options_, trial)) && now() < deadline && !options_.stop_requested()) {
    std::this_thread::sleep_for(kBetweenLooks);  // one of a search that was killed ends by itself
  }
  const auto command = options_.command(trial, folder_of(options_, trial), share);  // may read all texts
  runs_.push_back(
      {&trial, now(), ChildProcess(command, environment(), {.in = nothing.get(), .out = log.get(), .err = log.get()})});
}

void TrialRuns::stop() {
  for (const Run& run : runs_) {
    run.process.signal_group(SIGTERM);  // each saves a checkpoint
  }
  is_stopping_ = true;
}

TrialRuns::~TrialRuns() {
  stop();
  const double deadline = now() + kSecondsToEnd;
  const auto has_ended = [](Run& run) {
    return run.process.end() || run.process.next_change() == ChildProcess::Change::kEnded;
  };
  while (!std::ranges::all_of(runs_, has_ended) && now() < deadline) {
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

std::optional<TrialRuns::Outcome> TrialRuns::wait() {
  while (!runs_.empty()) {
    if (!is_stopping_ && options_.stop_requested()) {
      stop();
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
  const auto remove_model = [&](const fs::path& from) {
    fs::remove(from / kWeightsFile, error);
    TORCH_CHECK(!error, (from / kWeightsFile).string(), ": cannot be removed: ", error.message(), ".");
  };
  if (!fs::is_directory(folder, error)) {
    return;
  }
  remove_model(folder);
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with("before-restart-")) {
      remove_model(entry.path());
    }
  }
  if (fs::is_directory(folder / "checkpoints", error)) {
    remove_checkpoints(folder / "checkpoints");
  }
}

bool is_at_work(const fs::path& folder) {
  std::error_code none;
  if (!fs::exists(folder / RunLock::kFile, none)) {
    return false;
  }
  try {
    const RunLock lock(folder);
    return false;
  } catch (const c10::ValueError&) {
    return true;
  }
}

}  // namespace mezzo::text
