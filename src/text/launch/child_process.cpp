#include "text/launch/child_process.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include "text/launch/pipe.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (const std::string& text : strings) {
    result.push_back(const_cast<char*>(text.c_str()));  // as exec wants them; it changes nothing
  }
  result.push_back(nullptr);
  return result;
}

/// No signal arrives in this thread, nor in a child forked in it, while this lives.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// As a shell would leave them: ignored signals stay ignored, except the signals that the launcher
/// passes on.
void reset_signals() {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action{};
    const bool passed_on = signal == SIGINT || signal == SIGTERM || signal == SIGUSR1;
    if (::sigaction(signal, nullptr, &action) == 0 && (action.sa_handler != SIG_IGN || passed_on)) {
      action = {};
      action.sa_handler = SIG_DFL;
      ::sigaction(signal, &action, nullptr);
    }
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

/// The child's code between fork and exec, so calls into the kernel only: another thread may have held any lock.
[[noreturn]] void become(
    char* const* argv, char* const* envp, const StandardFiles& files, pid_t parent, int failed_exec) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == parent) {  // else it died before it could be noticed
    ::dup2(files.in, STDIN_FILENO);
    ::dup2(files.out, STDOUT_FILENO);
    ::dup2(files.err, STDERR_FILENO);
    ::close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
    reset_signals();
    ::execvpe(argv[0], argv, envp);
    const int reason = errno;
    [[maybe_unused]] const auto written = ::write(failed_exec, &reason, sizeof reason);
  }
  ::_exit(127);
}

/// The file that exec takes for `program`: a name without a slash is looked for on PATH.
fs::path file_of(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr || program.find('/') != std::string::npos ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((fs::path(folder) / program).c_str(), X_OK) == 0) return fs::path(folder) / program;
  }
  return program;
}

/// Why exec failed with the error `reason`, and the remedy.
std::string why_not_run(const std::string& program, int reason) {
  const fs::path file = file_of(program);
  std::error_code none;
  if (reason == ENOENT && !fs::exists(file, none)) return "it does not exist. Check the path";
  if (fs::is_directory(file, none)) return "it is a folder. Name a program in it";
  struct statvfs mounted{};
  if (reason == EACCES && ::statvfs(file.c_str(), &mounted) == 0) {
    if ((mounted.f_flag & ST_NOEXEC) != 0) {
      return "its file system allows no programs (noexec). Copy it to another file system";
    }
    const auto execute = fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec;
    if ((fs::status(file, none).permissions() & execute) == fs::perms::none) {
      return "it is not executable. Run: chmod +x " + file.string();
    }
    if (::access(file.c_str(), X_OK) != 0) return "this user may not execute it";
  }
  const bool may_be_the_interpreter = reason == ENOENT || reason == EACCES || reason == ENOTDIR || reason == ELOOP;
  std::string line, interpreter;
  std::ifstream script(file);
  if (!may_be_the_interpreter || !std::getline(script, line) || !line.starts_with("#!")) {
    return reason == ENOENT ? "its dynamic loader does not exist. Build it for this system" : std::strerror(reason);
  }
  std::istringstream(line.substr(2)) >> interpreter;  // without a carriage return
  return "its first line names the interpreter " + interpreter +
         (line.ends_with('\r') ? " and ends in a carriage return. Save the file with Unix line ends"
                               : c10::str(": ", std::strerror(reason), ". Install it, or correct the line"));
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command,
                           const std::vector<std::string>& environment,
                           const StandardFiles& files) {
  const auto argv = pointers(command);
  const auto envp = pointers(environment);
  Pipe failed_exec = make_pipe();
  const pid_t parent = ::getpid();
  {
    const SignalsBlocked blocked;
    pid_ = ::fork();
    if (pid_ == 0) {
      become(argv.data(), envp.data(), files, parent, failed_exec.write.get());
    }
  }
  TORCH_CHECK(pid_ > 0, "cannot start another process: ", std::strerror(errno));
  ::setpgid(pid_, pid_);  // in both processes, so that the first one does it
  failed_exec.write.reset();
  int reason = 0;
  ssize_t count = 0;
  do {
    count = ::read(failed_exec.read.get(), &reason, sizeof reason);
  } while (count < 0 && errno == EINTR);
  if (count == sizeof reason) {
    ::waitpid(pid_, nullptr, 0);
    TORCH_CHECK(false, "cannot run '", command[0], "': ", why_not_run(command[0], reason));
  }
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      end_(other.end_),
      stop_signal_(other.stop_signal_),
      group_is_gone_(other.group_is_gone_) {}

ChildProcess::~ChildProcess() {
  if (pid_ < 0 || group_is_gone_) {
    return;
  }
  ::kill(-pid_, SIGKILL);
  while (::waitpid(-pid_, nullptr, 0) > 0 || errno == EINTR) {
  }
}

ChildProcess::Change ChildProcess::next_change() {
  siginfo_t info{};
  const auto id = static_cast<id_t>(pid_);
  if (end_ || ::waitid(P_PID, id, &info, WEXITED | WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return Change::kNone;
  }
  if (info.si_code == CLD_EXITED || info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED) {
    end_ = ProcessEnd{info.si_code != CLD_EXITED, info.si_status};
    return Change::kEnded;
  }
  siginfo_t taken{};
  ::waitid(P_PID, id, &taken, WSTOPPED | WCONTINUED | WNOHANG);
  if (taken.si_pid == 0) {
    return next_change();  // it has ended in between
  }
  if (taken.si_code == CLD_CONTINUED) {
    return Change::kContinued;
  }
  stop_signal_ = taken.si_status;
  return Change::kStopped;
}

void ChildProcess::signal_group(int signal) const {
  if (!group_is_gone_) {
    ::kill(-pid_, signal);
  }
}

bool ChildProcess::group_is_gone() {
  while (!group_is_gone_) {
    const pid_t ended = ::waitpid(-pid_, nullptr, WNOHANG);
    if (ended == 0) {
      return false;
    }
    group_is_gone_ = ended < 0 && errno != EINTR;
  }
  return true;
}

}  // namespace mezzo::text
