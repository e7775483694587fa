#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "system/unique_fd.h"

namespace mezzo::text {

/// A rank's output on one of its files, cut into lines.
class LineStream {
 public:
  using Emit = std::function<void(std::string_view line)>;  ///< without its line feed

  /// Takes `fd`, which is made non-blocking.
  /// @param drawn  for a terminal: a carriage return begins the line anew, and the text behind one is live().
  LineStream(UniqueFd fd, bool drawn);

  int fd() const { return fd_.get(); }  ///< -1 when the rank has closed it
  bool is_open() const { return fd_.get() >= 0; }

  /// Reads the available bytes, up to about a mebibyte. Never waits.
  void read(const Emit& emit);
  /// Nothing more is wanted: emits the line that was begun.
  void close(const Emit& emit);

  /// A line that is being drawn in place, as a progress bar is; empty for none.
  std::string_view live() const;
  /// The last line that was not empty, without what steers a terminal; cut to a readable length.
  std::string last_line() const;

 private:
  void feed(std::string_view bytes, const Emit& emit);
  void add(std::string_view piece, const Emit& emit);
  void end_line(const Emit& emit);

  UniqueFd fd_;
  bool drawn_;
  bool redrawn_ = false;  ///< the line begun has had a carriage return
  std::string line_;
  std::string last_line_;
};

}  // namespace mezzo::text
