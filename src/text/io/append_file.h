#pragma once

#include <filesystem>
#include <string>

#include "system/unique_fd.h"

namespace mezzo::text {

/// A file that grows at its end.
class AppendFile {
 public:
  /// @param flags  further ones of open(2), such as O_TRUNC
  /// @throws c10::Error  that names `who`, the path and the system's reason; so do the others
  AppendFile(const char* who, std::filesystem::path path, int flags);

  /// Writes all of `unwritten`. If that fails, the rest stays there.
  void write();
  /// After that, written records survive the death of the machine.
  void flush();

  const std::filesystem::path& path() const { return path_; }
  int fd() const { return fd_.get(); }

  std::string unwritten;

 private:
  const char* who_;
  std::filesystem::path path_;
  UniqueFd fd_;
};

}  // namespace mezzo::text
