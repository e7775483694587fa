#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

namespace mezzo::text {

/// The display of a ProgressBar.
enum class ProgressStyle {
  kAuto,      ///< kTerminal if the stream is a terminal that can move its cursor, else kLines
  kTerminal,  ///< one line, redrawn in place
  kLines,     ///< a plain line from time to time, for log files
  kQuiet,     ///< nothing, also from print_line()
};

/// Shows the progress of a long task:
///
///      62% ━━━━━━━━━━━━╸─────── 178/288  1:46 left  loss 0.412  best 0.664  31.2 samples/s  2:52 elapsed
///
/// The line fits any width. The less important pieces are omitted first, then the bar, then the
/// other pieces, from the end. The remaining time is estimated after ten steps. On a terminal with
/// a UTF-8 locale the bar has line glyphs, else ASCII. Not thread-safe. Errors of the stream are
/// ignored.
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
  /// Options of a ProgressBar.
  struct Options {
    std::string label = {};                      ///< in front of the bar
    int64_t total = 0;                           ///< number of steps; 0 if unknown: then neither bar nor remaining time
    std::string unit = {};                       ///< of the steps, shown after their count: "rows"
    int64_t initial = 0;                         ///< earlier steps of a resumed run; excluded from the estimate of time
    ProgressStyle style = ProgressStyle::kAuto;  ///< where and how it is drawn
    std::FILE* stream = stderr;                  ///< not owned
    double redraw_seconds = 0.1;                 ///< kTerminal: the least time between two redraws
    double line_seconds = 10;                    ///< kLines: the least time between two lines
    int64_t line_steps = 0;                      ///< kLines: above 0, steps between two lines, instead of the time
    int width = 0;                               ///< columns; 0 asks the terminal at every redraw
    std::function<double()> clock{};             ///< monotonic seconds; default: a steady clock
  };

  /// Draws nothing before the first update().
  explicit ProgressBar(Options options);

  /// Ends the line, unless finish() was called. So the message of an exception starts on a new
  /// line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Reports that `step` steps are done. Cheap if no redraw is due.
  /// @param text  further pieces, separated by two spaces, the most important first
  /// @param less  pieces that are less important than the bar
  void update(int64_t step, std::string_view text = {}, std::string_view less = {});

  /// Prints a separate line above the bar, without control characters.
  void print_line(std::string_view line);

  /// Shows the last update and ends the line. Only another finish() may follow.
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
