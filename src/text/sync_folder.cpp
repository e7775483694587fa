#include "text/sync_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace mezzo::text {

int sync_folder(const std::filesystem::path& folder) {
  const int descriptor = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return errno;
  int error = fsync(descriptor) == 0 ? 0 : errno;
  if (error == EINVAL) error = 0;  // some network file systems cannot, and need not
  close(descriptor);
  return error;
}

}  // namespace mezzo::text
