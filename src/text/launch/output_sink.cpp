#include "text/launch/output_sink.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

namespace mezzo::text {
namespace {

constexpr size_t kFilePiece = size_t{1} << 20;

}  // namespace

OutputSink::OutputSink(int fd) : fd_(fd) {
  struct stat status{};
  const bool is_file = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  piece_ = is_file ? kFilePiece : PIPE_BUF;  // the bytes that a pipe takes at once if it polls as writable
}

void OutputSink::write(std::string_view bytes) {
  if (error_ == 0) {
    queue_ += bytes;
  }
}

void OutputSink::flush() {
  while (waiting() > 0) {
    pollfd file{fd_, POLLOUT, 0};
    if (::poll(&file, 1, 0) <= 0) {
      break;
    }
    const ssize_t count = ::write(fd_, queue_.data() + written_, std::min(waiting(), piece_));
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) {
      break;
    }
    if (count < 0) {
      error_ = errno;
      is_broken_pipe_ = error_ == EPIPE;
      queue_.clear();
      written_ = 0;
      break;
    }
    written_ += static_cast<size_t>(count);
  }
  if (waiting() == 0 || written_ > kFilePiece) {
    queue_.erase(0, std::exchange(written_, 0));
  }
}

int OutputSink::take_error() { return std::exchange(error_taken_, error_ != 0) ? 0 : error_; }

}  // namespace mezzo::text
