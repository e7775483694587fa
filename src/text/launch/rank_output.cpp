#include "text/launch/rank_output.h"

#include <c10/util/StringUtil.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "text/launch/pipe.h"
#include "text/launch/pseudo_terminal.h"

namespace mezzo::text {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";

bool can_draw(int fd) {
  const char* terminal = std::getenv("TERM");
  return terminal != nullptr && std::string_view(terminal) != "dumb" && ::isatty(fd) != 0;
}

bool is_same_terminal(int one, int other) {
  struct stat a{}, b{};
  return ::isatty(one) != 0 && ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 && a.st_rdev == b.st_rdev;
}

}  // namespace

RankOutput::RankOutput(std::string name)
    : name_(std::move(name)),
      out_(STDOUT_FILENO),
      err_(STDERR_FILENO),
      err_draws_(can_draw(STDERR_FILENO)),
      out_is_screen_(err_draws_ && is_same_terminal(STDOUT_FILENO, STDERR_FILENO)) {}

RankOutput::Files RankOutput::add_rank(int64_t rank, bool draws) {
  Pipe out = make_pipe();
  add_stream(rank, /*is_error=*/false, /*draws=*/false, std::move(out.read));
  if (!draws || !err_draws_) {
    Pipe err = make_pipe();
    add_stream(rank, /*is_error=*/true, /*draws=*/false, std::move(err.read));
    return {std::move(out.write), std::move(err.write)};
  }
  PseudoTerminal err = open_pseudo_terminal();
  add_stream(rank, /*is_error=*/true, /*draws=*/true, std::move(err.reader));
  resize();
  return {std::move(out.write), std::move(err.terminal)};
}

void RankOutput::add_stream(int64_t rank, bool is_error, bool draws, UniqueFd fd) {
  streams_.push_back({rank, c10::str("[rank ", rank, "] "), is_error, draws, LineStream(std::move(fd), draws)});
}

void RankOutput::resize() {
  for (const Stream& stream : streams_) {
    if (stream.draws && stream.lines.is_open()) {
      copy_terminal_size(STDERR_FILENO, stream.lines.fd(), static_cast<int64_t>(stream.prefix.size()));
    }
  }
}

/// Where both are one terminal, one queue keeps their order.
OutputSink& RankOutput::sink_of(const Stream& stream) { return stream.is_error || out_is_screen_ ? err_ : out_; }

LineStream::Emit RankOutput::emit_to(Stream& stream) {
  return [this, &stream](std::string_view line) { show_line(sink_of(stream), stream.prefix, line); };
}

void RankOutput::show_line(OutputSink& sink, std::string_view prefix, std::string_view line) {
  if (&sink == &err_ && !shown_.empty()) {
    sink.write(kClearLine);
    shown_.clear();
  }
  sink.write(prefix);
  sink.write(line);
  sink.write("\n");
}

void RankOutput::show_live() {
  std::string live;
  for (const Stream& stream : streams_) {
    if (const auto line = stream.lines.live(); !line.empty()) {
      live = stream.prefix + std::string(line);
    }
  }
  if (live != shown_) {
    err_.write("\r" + live + "\x1b[K");
    shown_ = std::move(live);
  }
}

void RankOutput::add_to(std::vector<pollfd>& files) {
  for (const Stream& stream : streams_) {
    if (may_read(stream)) {
      files.push_back({stream.lines.fd(), POLLIN, 0});
    }
  }
  for (const OutputSink* sink : {&out_, &err_}) {
    if (sink->waiting() > 0) {
      files.push_back({sink->fd(), POLLOUT, 0});
    }
  }
}

void RankOutput::service() {
  for (Stream& stream : streams_) {
    if (may_read(stream)) {
      stream.lines.read(emit_to(stream));
    }
  }
  show_live();
  flush();
  close_unread();
}

/// Where nobody reads any more, ranks learn it as they would without a launcher:
/// their pipe breaks as well.
void RankOutput::close_unread() {
  for (Stream& stream : streams_) {
    if (stream.lines.is_open() && sink_of(stream).is_broken()) {
      stream.lines.close(emit_to(stream));
    }
  }
}

void RankOutput::flush() {
  out_.flush();
  err_.flush();
  report_errors();
}

/// A full disk must not end a training run, nor pass unseen.
void RankOutput::report_errors() {
  if (const int error = out_.take_error(); error != 0 && error != EPIPE) {
    note(c10::str("cannot write to stdout, so the output of ranks is lost: ", std::strerror(error)));
  }
}

void RankOutput::note(const std::string& text) {
  show_line(err_, name_ + ": ", text);
  err_.flush();
}

std::string RankOutput::last_error_line(int64_t rank) const {
  for (const Stream& stream : streams_) {
    if (stream.rank == rank && stream.is_error) {
      return stream.lines.last_line();
    }
  }
  return "";
}

void RankOutput::close_ranks() {
  for (Stream& stream : streams_) {
    stream.lines.read(emit_to(stream));
    stream.lines.close(emit_to(stream));
  }
  show_live();
  flush();
}

}  // namespace mezzo::text
