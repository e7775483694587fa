#pragma once

#include "mezzo/cpp20.h"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace mezzo::text {

class ContentHash;

/// A file that is replaced as a whole or not at all. It is written under another name in the same
/// folder, then commit() renames it to `path`. A reader of `path` finds the old contents or the new
/// ones, also after a crash or power cut. A process that has the old file open or mapped keeps it.
///
/// `path` may be absent or a regular file; a symbolic link is replaced, not followed. Not
/// thread-safe. If two writers write one path, the last commit wins. All members throw
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

  /// Without a commit, removes the temporary file and leaves `path` unchanged.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends bytes.
  void write(const void* data, size_t size);
  /// Appends bytes.
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }

  /// Flushes to the disk, renames, and flushes the folder. Call it once, as the last member.
  /// @return the 128-bit XXH3 of the contents, as 32 hexadecimal digits
  std::string commit();

 private:
  [[noreturn]] void fail(int error) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  std::unique_ptr<ContentHash> hash_;
};

/// Whether `file` is a temporary file of `name`, from a writer that still writes or was killed.
bool is_leftover_of(std::string_view name, const std::filesystem::path& file);

/// Writes `contents` to `path` through an AtomicFile. Returns their hash.
std::string write_file_atomically(const std::filesystem::path& path, std::string_view contents);

}  // namespace mezzo::text
