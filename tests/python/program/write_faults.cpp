// Preloaded into the program: counts the calls that write to a folder, and makes one of them
//   fail, or the process end.
//   MEZZO_FAULT_FOLDER  whose calls count, an absolute path
//   MEZZO_FAULT_LOG     a file that gets a line for each: its number, the call, the path
//   MEZZO_TERM_AT       the number of a call before which SIGTERM comes
//   MEZZO_FAULT         what happens, at call MEZZO_FAULT_AT: kill (before the call), stop (the call waits until the
//                       process may go on), EIO, ENOSPC, and at the MEZZO_FAULT_FOR - 1 calls after it;
//                       at every call: short (writes take 1,000 bytes at most), EINVAL (of fsync)
//   MEZZO_LIES          works as file systems on buckets. fsync does nothing. A rename copies, piece by piece, and
//                       then removes. A kill empties this number of files, the last ones written: they had not
//                       reached the disk
//   MEZZO_STALE         a folder whose list is old, without any name
//   MEZZO_NO_MEMFD      with any value: memory cannot be shared
//   MEZZO_UNREADABLE    a file whose read() fails with EIO; or a folder, with a slash at its end, in which stat()
//                       fails with EIO
// A thread with the lowest priority writes a checkpoint beside training. The calls of other threads
// wait for its end, so that a call has the same number in each run.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

const std::string& fault() {
  static const std::string value = variable("MEZZO_FAULT");
  return value;
}

bool is_inside(const std::string& path) {
  static const std::string folder = variable("MEZZO_FAULT_FOLDER");
  return !folder.empty() && path.compare(0, folder.size(), folder) == 0;
}

std::string path_of(int fd) {
  char path[PATH_MAX];
  const ssize_t size = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof(path));
  return {path, size > 0 ? static_cast<size_t>(size) : 0};
}

std::string path_at(int folder, const char* name) {
  return folder == AT_FDCWD || *name == '/' ? name : path_of(folder) + "/" + name;
}

void log(long number, const char* call, const std::string& path) {
  static const std::string file = variable("MEZZO_FAULT_LOG");
  if (!file.empty()) {
    const std::string line = std::to_string(number) + " " + call + " " + path + "\n";
    const long fd = ::syscall(SYS_openat, AT_FDCWD, file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    ::syscall(SYS_write, fd, line.data(), line.size());
    ::close(static_cast<int>(fd));
  }
}

bool lies() {
  static const bool value = std::getenv("MEZZO_LIES") != nullptr;
  return value;
}

/// Descriptors of the files that were written, the latest last.
std::vector<int>& written() {
  static std::vector<int> files;
  return files;
}

std::mutex written_mutex;

void note_written(int fd) {
  struct stat status{}, last{};
  const std::lock_guard lock(written_mutex);
  if (::fstat(fd, &status) == 0 &&
      (written().empty() || ::fstat(written().back(), &last) != 0 || last.st_ino != status.st_ino)) {
    written().push_back(::fcntl(fd, F_DUPFD_CLOEXEC, 200));
  }
}

void lose_written() {
  const std::lock_guard lock(written_mutex);
  const auto lost = std::min<size_t>(std::atol(variable("MEZZO_LIES").c_str()), written().size());
  for (size_t i = 0; i < lost; ++i) {
    ::syscall(SYS_ftruncate, written()[written().size() - 1 - i], 0);
  }
}

std::atomic<pid_t> saver{0};  // the thread that saves, or 0

struct Saver {
  ~Saver() { saver = 0; }  // when the thread ends
};

/// Counts the call. Whether it is to fail, with errno set.
bool fails(const char* call, const std::string& path) {
  if (!is_inside(path)) {
    return false;
  }
  while (saver != 0 && saver != ::gettid()) {
    ::usleep(100);
  }
  static std::atomic<long> calls{0};
  static const long chosen = std::atol(variable("MEZZO_FAULT_AT").c_str());
  static const long stopped = std::atol(variable("MEZZO_TERM_AT").c_str());
  const long number = ++calls;
  log(number, call, path);
  if (number == stopped) {
    ::kill(::getpid(), SIGTERM);
  }
  if (fault() == "EINVAL" && std::strcmp(call, "fsync") == 0) {
    errno = EINVAL;
    return true;
  }
  static const long count = std::max(1L, std::atol(variable("MEZZO_FAULT_FOR").c_str()));
  if (number < chosen || number >= chosen + count) {
    return false;
  }
  if (fault() == "kill") {
    if (lies()) lose_written();
    ::kill(::getpid(), SIGKILL);
  } else if (fault() == "stop") {
    ::kill(::getpid(), SIGSTOP);
  }
  errno = fault() == "EIO" ? EIO : ENOSPC;
  return fault() == "EIO" || fault() == "ENOSPC";
}

const std::string& unreadable() {
  static const std::string value = variable("MEZZO_UNREADABLE");
  return value;
}

bool is_in_unreadable(const std::string& path) {
  return unreadable().back() == '/' && path.compare(0, unreadable().size(), unreadable()) == 0;
}

/// How much of a write happens.
size_t granted(int fd, size_t size) {
  return fault() == "short" && is_inside(path_of(fd)) ? std::min<size_t>(size, 1000) : size;
}

int open_at(int folder, const char* name, int flags, mode_t mode) {
  if ((flags & O_CREAT) != 0 && fails("open", path_at(folder, name))) {
    return -1;
  }
  return static_cast<int>(::syscall(SYS_openat, folder, name, flags, mode));
}

int unlink_at(const char* call, int folder, const char* name, int flags) {
  return fails(call, path_at(folder, name)) ? -1 : static_cast<int>(::syscall(SYS_unlinkat, folder, name, flags));
}

mode_t mode_of(int flags, std::va_list arguments) { return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0; }

/// Each call counts, so that a kill may come between any two.
int copy_file(const std::string& from, const std::string& to) {
  const int source = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, from.c_str(), O_RDONLY | O_CLOEXEC));
  const int target = open_at(AT_FDCWD, to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  struct stat status{};
  if (source < 0 || target < 0 || ::fstat(source, &status) != 0) return -1;
  std::string piece(static_cast<size_t>(status.st_size / 2 + 1), '\0');  // a kill may leave one half
  long count = 0;
  while ((count = ::syscall(SYS_read, source, piece.data(), piece.size())) > 0) {
    ::write(target, piece.data(), static_cast<size_t>(count));
  }
  ::close(source);
  ::close(target);
  return 0;
}

int rename_by_copies(const std::string& from, const std::string& to) {
  struct stat status{};
  if (::syscall(SYS_newfstatat, AT_FDCWD, from.c_str(), &status, 0) != 0) return -1;
  if (!S_ISDIR(status.st_mode)) {
    return copy_file(from, to) == 0 ? ::unlink(from.c_str()) : -1;
  }
  ::mkdir(to.c_str(), 0777);
  std::vector<std::string> names;
  DIR* folder = ::opendir(from.c_str());
  while (const dirent* entry = ::readdir(folder)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  ::closedir(folder);
  std::sort(names.begin(), names.end());  // manifest.json before most others
  for (const std::string& name : names) {
    if (copy_file(from + "/" + name, to + "/" + name) != 0) return -1;
  }
  for (const std::string& name : names) ::unlink((from + "/" + name).c_str());
  return ::rmdir(from.c_str());
}

}  // namespace

extern "C" {

int open(const char* name, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at(AT_FDCWD, name, flags, mode);
}

int open64(const char* name, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at(AT_FDCWD, name, flags, mode);
}

int setpriority(__priority_which_t which, id_t who, int priority) noexcept {
  static thread_local Saver until_the_end;
  (void)&until_the_end;
  saver = ::gettid();
  return static_cast<int>(::syscall(SYS_setpriority, which, who, priority));
}

int memfd_create(const char* name, unsigned flags) noexcept {
  if (std::getenv("MEZZO_NO_MEMFD") != nullptr) {
    errno = ENOMEM;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_memfd_create, name, flags));
}

ssize_t read(int fd, void* data, size_t size) {
  if (!unreadable().empty() && (path_of(fd) == unreadable() || is_in_unreadable(path_of(fd)))) {
    errno = EIO;
    return -1;
  }
  return ::syscall(SYS_read, fd, data, size);
}

struct dirent* readdir(DIR* folder) {
  static const auto next = reinterpret_cast<dirent* (*)(DIR*)>(::dlsym(RTLD_NEXT, "readdir"));
  static const std::string stale = variable("MEZZO_STALE");
  return !stale.empty() && path_of(::dirfd(folder)) == stale ? nullptr : next(folder);
}

int stat(const char* name, struct stat* status) noexcept {
  if (!unreadable().empty() && is_in_unreadable(name)) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, name, status, 0));
}

ssize_t write(int fd, const void* data, size_t size) {
  if (lies() && is_inside(path_of(fd))) note_written(fd);
  return fails("write", path_of(fd)) ? -1 : ::syscall(SYS_write, fd, data, granted(fd, size));
}

int fsync(int fd) {
  if (lies()) return 0;
  return fails("fsync", path_of(fd)) ? -1 : static_cast<int>(::syscall(SYS_fsync, fd));
}

int ftruncate(int fd, off_t size) noexcept {
  return fails("ftruncate", path_of(fd)) ? -1 : static_cast<int>(::syscall(SYS_ftruncate, fd, size));
}

int rename(const char* from, const char* to) noexcept {
  if (lies() && is_inside(to)) return rename_by_copies(from, to);
  return fails("rename", to) ? -1 : static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int link(const char* from, const char* to) noexcept {
  return fails("link", to) ? -1 : static_cast<int>(::syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int mkdir(const char* name, mode_t mode) noexcept {
  return fails("mkdir", name) ? -1 : static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, name, mode));
}

int unlink(const char* name) noexcept { return unlink_at("unlink", AT_FDCWD, name, 0); }

int unlinkat(int folder, const char* name, int flags) noexcept { return unlink_at("unlink", folder, name, flags); }

int rmdir(const char* name) noexcept { return unlink_at("rmdir", AT_FDCWD, name, AT_REMOVEDIR); }

int remove(const char* name) noexcept {
  const int status = unlink_at("remove", AT_FDCWD, name, 0);
  return status != 0 && errno == EISDIR ? unlink_at("rmdir", AT_FDCWD, name, AT_REMOVEDIR) : status;
}

}  // extern "C"
