#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

namespace mezzo::text {

/// How a ProgressBar shows itself.
enum class ProgressStyle {
  kAuto,      ///< kTerminal when the stream is a terminal that can move its cursor, else kLines
  kTerminal,  ///< one line, redrawn in place
  kLines,     ///< a plain line now and then, for log files
  kQuiet,     ///< nothing at all, print_line() included
};

/// Shows the progress of a long task:
///
///      62% ━━━━━━━━━━━━╸─────── 178/288  1:46 left  loss 0.412  best 0.664  31.2 samples/s  2:52 elapsed
///
/// The line fits any width. The less important pieces are left out first, then the bar, then the others, from the end.
/// The time left is estimated from ten steps on. On a terminal with a UTF-8 locale the bar is drawn in line glyphs,
/// else in ASCII. Not thread-safe. Errors of the stream are ignored.
///
/// @code
/// mezzo::text::ProgressBar progress({.label = "train", .total = steps});
/// for (int64_t step = 1; step <= steps; ++step) {
///   progress.update(step, fmt::format("loss {:.3f}  best {:.3f}", loss, best), fmt::format("{:.1f} samples/s", rate));
/// }
/// progress.finish();
/// @endcode
class ProgressBar {
 public:
  struct Options {
    std::string label = {};  ///< in front of the bar
    int64_t total = 0;       ///< steps in all; 0 if unknown: then no bar and no time left
    std::string unit = {};   ///< of the steps, shown behind their count: "rows"
    int64_t initial = 0;     ///< steps done before, by a run this one resumes; kept out of the time left
    ProgressStyle style = ProgressStyle::kAuto;
    std::FILE* stream = stderr;       ///< not owned
    double redraw_seconds = 0.1;      ///< kTerminal: the least time between two redraws
    double line_seconds = 10;         ///< kLines: the least time between two lines
    int64_t line_steps = 0;           ///< kLines: when above 0, a line every so many steps instead
    int width = 0;                    ///< columns; 0 asks the terminal at every redraw
    std::function<double()> clock{};  ///< seconds, never going back; a steady clock unless given
  };

  explicit ProgressBar(Options options);

  /// Ends the line as it stands, unless finish() was called: after an exception the message gets a
  /// line of its own.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Notes that `step` steps are done. Cheap when nothing is due to be drawn.
  /// @param text  further pieces, separated by two spaces, the most important first
  /// @param less  pieces that are less important than the bar
  void update(int64_t step, std::string_view text = {}, std::string_view less = {});

  /// Prints a line of its own above the bar. Control characters are left out.
  void print_line(std::string_view line);

  /// Shows the last update for good and ends the line. Nothing more may
  /// follow but another finish().
  void finish();

 private:
  bool is_due(double now) const;
  void show(double now);
  void draw(double now);
  std::string status_line(double now, size_t columns) const;

  Options options_;
  bool utf8_;
  double started_;
  double shown_at_ = 0;
  int64_t step_;
  int64_t shown_step_ = -1;
  std::string text_, less_;
  bool line_open_ = false;
  bool finished_ = false;
};

}  // namespace mezzo::text
