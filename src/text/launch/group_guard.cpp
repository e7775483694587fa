#include "text/launch/group_guard.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <vector>

#include "text/launch/pipe.h"

namespace mezzo::text {
namespace {

/// Calls into the kernel only, as after any fork of a process with threads.
[[noreturn]] void guard(int pipe, std::vector<pid_t>& groups) {
  ::setsid();  // out of reach of the terminal
  ::prctl(PR_SET_NAME, "launch-guard");
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::dup2(pipe, STDIN_FILENO);
  const int nothing = ::open("/dev/null", O_RDWR);
  ::dup2(nothing, STDOUT_FILENO);
  ::dup2(nothing, STDERR_FILENO);
  ::close_range(STDERR_FILENO + 1, ~0U, 0);  // the write end of the pipe among them
  pid_t message = 0;
  while (::read(STDIN_FILENO, &message, sizeof message) == sizeof message) {
    const auto slot = std::find(groups.begin(), groups.end(), message > 0 ? 0 : -message);
    if (slot != groups.end()) {
      *slot = std::max(message, 0);
    }
  }
  for (const pid_t group : groups) {
    if (group > 0) {
      ::kill(-group, SIGKILL);
    }
  }
  ::_exit(0);
}

}  // namespace

GroupGuard::GroupGuard(size_t capacity) {
  std::vector<pid_t> groups(capacity, 0);
  Pipe pipe = make_pipe();
  pid_ = ::fork();
  TORCH_CHECK(pid_ >= 0, "launch: cannot start another process: ", std::strerror(errno));
  if (pid_ == 0) {
    guard(pipe.read.get(), groups);
  }
  pipe_ = std::move(pipe.write);
}

GroupGuard::~GroupGuard() {
  pipe_.reset();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void GroupGuard::tell(pid_t message) {
  [[maybe_unused]] const auto written = ::write(pipe_.get(), &message, sizeof message);
}

}  // namespace mezzo::text
