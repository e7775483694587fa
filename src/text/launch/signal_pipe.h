#pragma once

#include <csignal>
#include <utility>
#include <vector>

#include "text/launch/pipe.h"

namespace mezzo::text {

/// During its lifetime, signals to a launcher (SIGINT, SIGTERM, SIGUSR1, SIGHUP unless it is ignored, SIGCHLD,
/// SIGWINCH) become bytes of a pipe. So one poll() waits for signals and files. Writing to a broken pipe is an error
/// instead of a SIGPIPE. They reach the pipe from every thread that they interrupt. One at a time in a process.
class SignalPipe {
 public:
  /// @throws c10::Error  when another one lives.
  SignalPipe();
  /// Puts the handlers back.
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  /// Readable when a signal has come.
  int fd() const { return pipe_.read.get(); }
  /// The signals that came since the last call, in order.
  std::vector<int> take();

 private:
  Pipe pipe_;
  std::vector<std::pair<int, struct sigaction>> before_;
};

}  // namespace mezzo::text
