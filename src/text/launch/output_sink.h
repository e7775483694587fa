#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mezzo::text {

/// Writes to a file without waiting for a slow reader: output that does not fit yet is kept. The file's own flags are
/// left alone, since other programs may share it.
class OutputSink {
 public:
  /// @param fd  not owned.
  explicit OutputSink(int fd);

  int fd() const { return fd_; }
  void write(std::string_view bytes);
  /// Writes as much as the file takes now.
  void flush();
  /// Bytes that wait.
  size_t waiting() const { return queue_.size() - written_; }

  /// Nobody reads the file any more. Output written then is dropped.
  bool is_broken() const { return error_ != 0 && is_broken_pipe_; }
  /// Something could not be written.
  bool has_lost() const { return error_ != 0; }
  /// The first error of the file, once; 0 for none.
  int take_error();

 private:
  int fd_;
  size_t piece_;
  std::string queue_;
  size_t written_ = 0;
  int error_ = 0;
  bool error_taken_ = false;
  bool is_broken_pipe_ = false;
};

}  // namespace mezzo::text
