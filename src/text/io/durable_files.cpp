#include "text/io/durable_files.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <system_error>

#include "system/unique_fd.h"
#include "text/io/read_error.h"

namespace mezzo::text {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

int flush_to_disk(int descriptor) {
  if (::fsync(descriptor) == 0) return 0;
  return errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP ? 0 : errno;
}

void flush_folder(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder.empty() ? "." : folder;
  const UniqueFd descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  TORCH_CHECK_VALUE(descriptor.get() >= 0, path.string(), ": cannot be opened: ", reason(errno));
  const int error = flush_to_disk(descriptor.get());
  TORCH_CHECK_VALUE(error == 0, path.string(), ": cannot be flushed to the disk: ", reason(error));
}

void make_folders(const std::filesystem::path& folder) {
  std::error_code error;
  if (folder.empty() || std::filesystem::is_directory(folder, error)) {
    return;
  }
  const auto parent = folder.has_filename() ? folder.parent_path() : folder.parent_path().parent_path();
  make_folders(parent);
  std::filesystem::create_directory(folder, error);
  TORCH_CHECK_VALUE(!error && std::filesystem::is_directory(folder), folder.string(),
                    ": cannot be made a folder: ", error ? error.message() : "there is a file of that name");
  flush_folder(parent);
}

bool is_name_of(const std::filesystem::path& path, int descriptor) {
  struct stat named{}, opened{};
  return ::stat(path.c_str(), &named) == 0 && ::fstat(descriptor, &opened) == 0 && named.st_dev == opened.st_dev &&
         named.st_ino == opened.st_ino;
}

void for_each_piece(const std::filesystem::path& path, const std::function<void(const void*, size_t)>& take) {
  const UniqueFd descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (descriptor.get() < 0) fail_to_read(path, errno);
  constexpr size_t kPieceBytes = 1 << 16;  // which a cache near the processor holds
  const auto piece = std::make_unique_for_overwrite<char[]>(kPieceBytes);
  ssize_t count = 0;
  while ((count = ::read(descriptor.get(), piece.get(), kPieceBytes)) > 0 || (count < 0 && errno == EINTR)) {
    if (count > 0) take(piece.get(), static_cast<size_t>(count));
  }
  if (count < 0) fail_to_read(path, errno);
}

}  // namespace mezzo::text
