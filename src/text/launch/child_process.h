#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "text/launch/process_end.h"

namespace mezzo::text {

/// Files that a child gets as its standard ones. Not owned.
struct StandardFiles {
  int in, out, err;
};

/// A process in a separate group, which ends when the thread that started it does.
class ChildProcess {
 public:
  /// @param environment  "NAME=value", all that the child gets.
  /// @throws c10::Error  when the program cannot be run.
  ChildProcess(const std::vector<std::string>& command,
               const std::vector<std::string>& environment,
               const StandardFiles& files);

  /// Kills the rest of the group, and waits for it.
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  pid_t pid() const { return pid_; }
  /// nullopt while it runs.
  const std::optional<ProcessEnd>& end() const { return end_; }

  enum class Change { kNone, kStopped, kContinued, kEnded };
  /// The next thing that has happened to it. Never waits.
  Change next_change();

  /// The signal that stopped it, after Change::kStopped.
  int stop_signal() const { return stop_signal_; }

  /// Sends `signal` to every process of the group.
  void signal_group(int signal) const;

  /// Whether no process of the group is left. Asked when it has ended itself; never waits. Orphans of the group count
  /// only if this process is their subreaper.
  bool group_is_gone();

 private:
  // An ended child is not waited for until its group is asked after: so its number
  // cannot be another's meanwhile.
  pid_t pid_ = -1;
  std::optional<ProcessEnd> end_;
  int stop_signal_ = 0;
  bool group_is_gone_ = false;
};

}  // namespace mezzo::text
