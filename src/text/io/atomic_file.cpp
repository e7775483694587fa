#include "mezzo/text/io/atomic_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "text/io/content_hash.h"
#include "text/io/durable_files.h"

namespace mezzo::text {
namespace {

constexpr std::string_view kTemporaryEnding = ".tmp";

std::filesystem::path temporary_name(const std::filesystem::path& path) {
  static std::atomic<uint64_t> count{0};
  return path.parent_path() / fmt::format(".{}.{}.{}{}", path.filename().string(), getpid(), count++, kTemporaryEnding);
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)), hash_(std::make_unique<ContentHash>()) {
  struct stat status;
  TORCH_CHECK_VALUE(stat(path_.c_str(), &status) != 0 || S_ISREG(status.st_mode), path_.string(),
                    ": exists and is not a regular file. Choose another path.");
  do {  // a name left by a killed process of the same id is passed over
    temporary_ = temporary_name(path_);
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) fail(errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, size_t size) {
  constexpr size_t kMaxPiece = size_t{1} << 30;  // Linux writes at most 2 GiB in one call
  const char* bytes = static_cast<const char*>(data);
  hash_->update(data, size);
  while (size > 0) {
    const ssize_t written = ::write(descriptor_, bytes, std::min(size, kMaxPiece));
    if (written < 0) {
      if (errno == EINTR) continue;
      fail(errno);
    }
    bytes += written;
    size -= static_cast<size_t>(written);
  }
}

std::string AtomicFile::commit() {
  if (const int error = flush_to_disk(descriptor_)) fail(error);
  if (rename(temporary_.c_str(), path_.c_str()) != 0) fail(errno);
  if (close(std::exchange(descriptor_, -1)) != 0) fail(errno);
  flush_folder(path_.parent_path());
  return hash_->hex();
}

void AtomicFile::fail(int error) const {
  TORCH_CHECK_VALUE(error != ENOSPC && error != EDQUOT && error != EFBIG, path_.string(),
                    ": no space left on the disk, or above the file size limit. Free some space or write elsewhere.");
  TORCH_CHECK_VALUE(false, path_.string(), ": cannot be written: ", std::generic_category().message(error), ".");
}

bool is_leftover_of(std::string_view name, const std::filesystem::path& file) {
  std::string rest = file.filename().string();
  const std::string beginning = fmt::format(".{}.", name);
  if (!rest.starts_with(beginning) || !rest.ends_with(kTemporaryEnding)) {
    return false;
  }
  rest.erase(0, beginning.size());
  return rest.find_first_not_of("0123456789.") == rest.size() - kTemporaryEnding.size() + 1;  // at the t of .tmp
}

std::string write_file_atomically(const std::filesystem::path& path, std::string_view contents) {
  AtomicFile file(path);
  file.write(contents);
  return file.commit();
}

}  // namespace mezzo::text
