#pragma once

#include "mezzo/cpp20.h"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace mezzo::text {

class ContentHash;

/// A file that appears whole or not at all: written under another name in the same folder, then
/// renamed over `path` by commit(). Whoever opens `path`, also after a crash or power cut, finds
/// the old contents or the new ones; a process that has the old file open or mapped keeps it.
///
/// `path` may be absent or a regular file; a symbolic link is replaced, not followed. Not
/// thread-safe. Of two writers of one path, the last to commit wins. All members throw
/// c10::ValueError with the path and the system's reason, such as a full disk.
///
/// @code
/// mezzo::text::AtomicFile file("model.bin");
/// file.write(header);
/// file.write(tensor.const_data_ptr(), tensor.nbytes());
/// file.commit();
/// @endcode
class AtomicFile {
 public:
  /// Creates the temporary file. The folder of `path` must exist.
  explicit AtomicFile(std::filesystem::path path);

  /// Without a commit, removes the temporary file and leaves `path` alone.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t size);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }

  /// Flushes to the disk, renames, and flushes the folder. Once only, and last.
  /// @return XXH3 in 128 bits of what was written, as 32 hexadecimal digits.
  std::string commit();

 private:
  [[noreturn]] void fail(int error) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  std::unique_ptr<ContentHash> hash_;
};

/// Whether `file` is a temporary file of `name`: of a writer that is at it, or was killed.
bool is_leftover_of(std::string_view name, const std::filesystem::path& file);

/// Writes `contents` to `path` through an AtomicFile. Returns their hash.
std::string write_file_atomically(const std::filesystem::path& path, std::string_view contents);

}  // namespace mezzo::text
