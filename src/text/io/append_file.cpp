#include "text/io/append_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "text/io/durable_files.h"

namespace mezzo::text {

AppendFile::AppendFile(const char* who, std::filesystem::path path, int flags)
    : who_(who),
      path_(std::move(path)),
      fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | flags, 0666)) {
  TORCH_CHECK(fd() >= 0, who_, ": cannot open ", path_.string(), " for writing: ", std::strerror(errno));
}

void AppendFile::write() {
  while (!unwritten.empty()) {
    const ssize_t written = ::write(fd(), unwritten.data(), unwritten.size());
    if (written < 0 && errno == EINTR) continue;
    TORCH_CHECK(written >= 0, who_, ": cannot write to ", path_.string(), ": ", std::strerror(errno));
    unwritten.erase(0, static_cast<size_t>(written));
  }
}

void AppendFile::flush() {
  const int error = flush_to_disk(fd());
  TORCH_CHECK(error == 0, who_, ": cannot flush ", path_.string(), " to the disk: ", std::strerror(error));
}

}  // namespace mezzo::text
