#pragma once

#include <poll.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "text/launch/line_stream.h"
#include "text/launch/output_sink.h"

namespace mezzo::text {

/// Puts the lines of all ranks on stdout and stderr, whole and each after `[rank N] `. If stderr is
/// a terminal, the progress bar of the first rank stays the last line, and all other lines go above
/// it.
class RankOutput {
 public:
  /// @param name  the beginning of the launcher's own lines.
  explicit RankOutput(std::string name);

  /// The files that a rank writes to.
  struct Files {
    UniqueFd out, err;
  };
  /// Files for one more rank.
  /// @param draws  it may have a terminal for stderr.
  /// @throws c10::Error
  Files add_rank(int64_t rank, bool draws);

  /// Adds what service() waits for.
  void add_to(std::vector<pollfd>& files);
  /// Reads the ranks' output, and writes as much as the outputs take. Never waits.
  void service();
  /// The terminal has another width.
  void resize();

  /// A line of the launcher's own, on stderr.
  void note(const std::string& text);
  /// What `rank` said last on stderr.
  std::string last_error_line(int64_t rank) const;

  /// The ranks have ended: shows the rest of their output.
  void close_ranks();
  /// Forgets them, for the ranks of the next start.
  void forget_ranks() { streams_.clear(); }
  /// Whether all has been written, as far as somebody reads it.
  bool is_flushed() const { return out_.waiting() == 0 && err_.waiting() == 0; }
  /// Nobody reads stdout, or stderr, any more.
  bool is_broken() const { return out_.is_broken() || err_.is_broken(); }
  /// Something that ranks wrote to stdout could not be written, though somebody may read it.
  bool has_lost_output() const { return out_.has_lost() && !out_.is_broken(); }

 private:
  struct Stream {
    int64_t rank;
    std::string prefix;
    bool is_error, draws;
    LineStream lines;
  };

  OutputSink& sink_of(const Stream& stream);
  bool may_read(const Stream& stream) { return stream.lines.is_open() && sink_of(stream).waiting() < kMostWaiting; }
  LineStream::Emit emit_to(Stream& stream);
  void add_stream(int64_t rank, bool is_error, bool draws, UniqueFd fd);
  void show_line(OutputSink& sink, std::string_view prefix, std::string_view line);
  void show_live();
  void close_unread();
  void flush();
  void report_errors();

  static constexpr size_t kMostWaiting = size_t{1} << 20;

  std::string name_;
  OutputSink out_, err_;
  bool err_draws_;      ///< stderr is a terminal that can move its cursor
  bool out_is_screen_;  ///< stdout is that terminal, too
  std::deque<Stream> streams_;
  std::string shown_;  ///< the text drawn on the last line of the terminal
};

}  // namespace mezzo::text
