#pragma once

#include <string>

namespace mezzo::text {

/// SIGKILL for 9.
std::string signal_name(int signal);

/// How a process ended.
struct ProcessEnd {
  bool by_signal = false;
  int value = 0;  ///< the exit status, or the signal

  bool is_success() const { return !by_signal && value == 0; }
  /// As a shell counts it: 128 + N for signal N.
  int status() const { return by_signal ? 128 + value : value; }
  /// "ended with exit status 1", "was killed by signal 9 (SIGKILL)".
  std::string to_string() const;
};

}  // namespace mezzo::text
