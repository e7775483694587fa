#include "text/launch/line_stream.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "text/launch/pipe.h"

namespace mezzo::text {
namespace {

constexpr size_t kLongestLine = size_t{1} << 20;
constexpr size_t kLongestQuote = 300;
constexpr int kReadsAtOnce = 16;

/// `text` without control characters and escape sequences, of at most kLongestQuote
/// bytes of whole characters.
std::string readable(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0x1b && i + 1 < text.size() && text[i + 1] == '[') {
      i = std::min(text.find_first_of("@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~", i + 2),
                   text.size());
    } else if (byte == '\t') {
      result += ' ';
    } else if (byte >= 0x20 && byte != 0x7f) {
      result += text[i];
    }
    if (result.size() > kLongestQuote) {
      while ((static_cast<unsigned char>(result.back()) & 0xc0U) == 0x80) {
        result.pop_back();  // the rest of a UTF-8 character
      }
      result.pop_back();
      return result + "…";
    }
  }
  return result;
}

}  // namespace

LineStream::LineStream(UniqueFd fd, bool drawn) : fd_(std::move(fd)), drawn_(drawn) { set_nonblocking(fd_.get()); }

void LineStream::read(const Emit& emit) {
  std::array<char, kLongestLine / kReadsAtOnce> buffer;
  for (int i = 0; i < kReadsAtOnce && is_open(); ++i) {
    const ssize_t count = ::read(fd(), buffer.data(), buffer.size());
    if (count > 0) {
      feed({buffer.data(), static_cast<size_t>(count)}, emit);
    } else if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
      return;
    } else {
      close(emit);  // also for EIO, by which a terminal says that nobody holds its other side
    }
  }
}

void LineStream::close(const Emit& emit) {
  fd_.reset();
  if (!line_.empty()) {
    end_line(emit);
  }
}

void LineStream::feed(std::string_view bytes, const Emit& emit) {
  while (!bytes.empty()) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    add(bytes.substr(0, end), emit);
    if (end < bytes.size()) {
      end_line(emit);
    }
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
  }
}

void LineStream::add(std::string_view piece, const Emit& emit) {
  if (const size_t begin = drawn_ ? piece.rfind('\r') : std::string_view::npos; begin != std::string_view::npos) {
    line_.clear();
    redrawn_ = true;
    piece.remove_prefix(begin + 1);
  }
  while (line_.size() + piece.size() > kLongestLine) {
    const size_t room = kLongestLine - line_.size();
    line_ += piece.substr(0, room);
    piece.remove_prefix(room);
    end_line(emit);
  }
  line_ += piece;
}

void LineStream::end_line(const Emit& emit) {
  emit(line_);
  if (line_.size() > 0) {
    last_line_ = line_.substr(0, 4 * kLongestQuote);
  }
  line_.clear();
  redrawn_ = false;
}

std::string_view LineStream::live() const { return redrawn_ ? std::string_view(line_) : std::string_view(); }

std::string LineStream::last_line() const { return readable(last_line_); }

}  // namespace mezzo::text
