#include "text/io/append_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace mezzo::text {

int open_for_writing(std::string_view who, const std::filesystem::path& path, int flags) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
  TORCH_CHECK(fd >= 0, who, ": cannot open ", path.string(), " for writing: ", std::strerror(errno));
  return fd;
}

void write_all(std::string_view who, const std::filesystem::path& path, int fd, std::string& bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    TORCH_CHECK(written >= 0, who, ": cannot write to ", path.string(), ": ", std::strerror(errno));
    bytes.erase(0, static_cast<size_t>(written));
  }
}

}  // namespace mezzo::text
