#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/text/tune/search.h"
#include "system/unique_fd.h"
#include "text/launch/child_process.h"

namespace mezzo::text {

/// Processes of a search that are under way, each with a trial.
class TrialRuns {
 public:
  /// The results of a process that ended.
  struct Outcome {
    Trial* trial;
    ProcessEnd end;
    double seconds;
  };

  explicit TrialRuns(const SearchOptions& options) : options_(options) {}
  /// Makes the remaining processes save a checkpoint and end.
  ~TrialRuns();
  TrialRuns(const TrialRuns&) = delete;
  TrialRuns& operator=(const TrialRuns&) = delete;

  /// Starts a process that trains `trial` up to `share` of its steps, once none of an earlier search is at it.
  void start(Trial& trial, double share);

  int64_t count() const { return std::ssize(runs_); }

  /// The next that ends, once it does; nullopt if a stop was requested and all have ended.
  std::optional<Outcome> wait();

 private:
  struct Run {
    Trial* trial;
    double started;
    ChildProcess process;
  };

  void stop();

  const SearchOptions& options_;
  std::vector<Run> runs_;
  bool is_stopping_ = false;
};

std::filesystem::path folder_of(const SearchOptions& options, const Trial& trial);
std::filesystem::path log_of(const SearchOptions& options, const Trial& trial);

/// The last line of a trial's log: its error.
std::string last_line(const std::filesystem::path& log);

/// Removes a trial's model and checkpoints, and nothing else.
void remove_weights(const std::filesystem::path& folder);

/// Whether a process holds the run there.
bool is_at_work(const std::filesystem::path& folder);

}  // namespace mezzo::text
