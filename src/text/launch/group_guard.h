#pragma once

#include <sys/types.h>

#include <cstddef>

#include "system/unique_fd.h"

namespace mezzo::text {

/// Kills process groups when this process dies without having ended them itself, by SIGKILL
/// even: a small process that sees its end of a pipe close. (PR_SET_PDEATHSIG ends children
/// only, not their children.)
class GroupGuard {
 public:
  /// @param capacity  groups at a time.
  /// @throws c10::Error
  explicit GroupGuard(size_t capacity);
  ~GroupGuard();
  GroupGuard(const GroupGuard&) = delete;
  GroupGuard& operator=(const GroupGuard&) = delete;

  void watch(pid_t group) { tell(group); }
  void forget(pid_t group) { tell(-group); }

 private:
  void tell(pid_t message);

  UniqueFd pipe_;
  pid_t pid_;
};

}  // namespace mezzo::text
