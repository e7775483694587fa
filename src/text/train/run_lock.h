#pragma once

#include <filesystem>

#include "system/unique_fd.h"

namespace mezzo::text {

/// Keeps other processes, of this host and of all that share its file system, from writing a run into the same folder.
/// It is a lock on the file .run.lock there, which names its owner. The system ends the lock with the process, however
/// that ends.
class RunLock {
 public:
  static constexpr const char* kFile = ".run.lock";

  /// @throws c10::ValueError  naming the process and the host, where another holds the lock.
  explicit RunLock(const std::filesystem::path& folder);
  /// Removes the file.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Whether the folder is still at its path: it may have been moved, removed or replaced.
  bool is_there() const;

 private:
  std::filesystem::path path_;
  UniqueFd folder_, file_;
};

}  // namespace mezzo::text
