#include "text/train/run_lock.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "text/io/durable_files.h"

namespace mezzo::text {
namespace {

std::string host_name() {
  std::array<char, 256> host{};
  return ::gethostname(host.data(), host.size() - 1) == 0 ? host.data() : "an unknown host";
}

std::string holder(int file) {
  std::array<char, 512> text{};
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  const std::string line(text.data(), size > 0 ? static_cast<size_t>(size) : 0);
  return line.empty() ? "another process" : line.substr(0, line.find('\n'));
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& folder)
    : path_(folder / kFile), folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  do {
    file_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    TORCH_CHECK_VALUE(file_.get() >= 0, path_.string(), ": cannot be made: ", std::strerror(errno),
                      "; a run needs a folder it may write to");
    const bool locked = ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0;
    TORCH_CHECK_VALUE(locked || errno != EWOULDBLOCK, "--output ", folder.string(), ": a run is writing there (",
                      holder(file_.get()), "); wait for its end, stop it, or pass another folder");
    if (!locked) {
      TORCH_WARN("--output ", folder.string(), " cannot be locked (", std::strerror(errno),
                 "): make sure that no other run writes there");
    }
  } while (!is_name_of(path_, file_.get()));  // the process that held it before may have removed the file
  // Only for who is refused: on a full disk the lock holds without it.
  const std::string name = fmt::format("process {} on {}\n", ::getpid(), host_name());
  [[maybe_unused]] const bool is_named =
      ::ftruncate(file_.get(), 0) == 0 && ::write(file_.get(), name.data(), name.size()) >= 0;
}

bool RunLock::is_there() const { return is_name_of(path_.parent_path(), folder_.get()); }

RunLock::~RunLock() {
  if (is_name_of(path_, file_.get())) {
    ::unlink(path_.c_str());
  }
}

}  // namespace mezzo::text
