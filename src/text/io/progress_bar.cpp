#include "mezzo/text/io/progress_bar.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "text/io/printable.h"
#include "text/io/utf8.h"

namespace mezzo::text {
namespace {

constexpr const char* kClearLine = "\r\x1b[K";
constexpr size_t kLeastBarColumns = 8;
constexpr size_t kMostBarColumns = 40;
constexpr int64_t kStepsToEstimate = 10;  // the first steps are slower: they set things up
constexpr int kUnknownWidth = 80;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ProgressStyle resolve(ProgressStyle style, std::FILE* stream) {
  if (style != ProgressStyle::kAuto) {
    return style;
  }
  const char* terminal = std::getenv("TERM");
  const bool dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
  return !dumb && ::isatty(::fileno(stream)) != 0 ? ProgressStyle::kTerminal : ProgressStyle::kLines;
}

/// Whether the user's locale is a UTF-8 one, by the variables that set it: the
/// library never calls setlocale.
bool locale_is_utf8() {
  for (const char* variable : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value != '\0') {
      const std::string lower = ascii_lower(value);
      return lower.find("utf-8") != std::string::npos || lower.find("utf8") != std::string::npos;
    }
  }
  return false;
}

size_t terminal_columns(const ProgressBar::Options& options) {
  winsize size{};
  int columns = options.width;
  if (columns <= 0 && ::ioctl(::fileno(options.stream), TIOCGWINSZ, &size) == 0) {
    columns = size.ws_col;
  }
  return static_cast<size_t>(columns > 0 ? columns : kUnknownWidth);
}

/// 0:07, 12:34, 1:02:03 or 3d 04:05.
std::string format_duration(double seconds) {
  const auto total = static_cast<int64_t>(std::clamp(std::floor(seconds), 0.0, 1e9));
  const int64_t days = total / 86400;
  const int64_t hours = total / 3600 % 24;
  const int64_t minutes = total / 60 % 60;
  if (days > 0) {
    return fmt::format("{}d {:02}:{:02}", days, hours, minutes);
  }
  if (hours > 0) {
    return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
  }
  return fmt::format("{}:{:02}", minutes, total % 60);
}

std::string draw_bar(double fraction, size_t columns, bool utf8) {
  const auto halves = static_cast<size_t>(fraction * 2.0 * static_cast<double>(columns));
  const size_t full = halves / 2;
  const bool half = halves % 2 != 0;
  std::string bar;
  for (size_t i = 0; i < columns; ++i) {
    if (i < full) {
      bar += utf8 ? "━" : "=";
    } else if (i == full && half) {
      bar += utf8 ? "╸" : ">";
    } else {
      bar += utf8 ? "─" : "-";
    }
  }
  return bar;
}

/// The pieces of `text`, which two spaces or more separate.
std::vector<std::string> split_pieces(std::string_view text) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    const size_t end = std::min(text.find("  "), text.size());
    if (end > 0) {
      pieces.emplace_back(text.substr(0, end));
    }
    text.remove_prefix(std::min(text.size(), end + 2));
  }
  return pieces;
}

/// The pieces of a line, the most important first.
struct Pieces {
  std::string head;   // label and percent
  std::string count;  // 178/288
  std::vector<std::string> more;
  size_t before_bar;  // the bar gives way to the first of `more`
};

/// Puts the pieces on one line of at most `columns`: head and count always, the others in their order until one does
/// not fit.
std::string lay_out(const Pieces& pieces, size_t columns, double fraction, bool with_bar, bool utf8) {
  std::string before_bar = pieces.head;
  std::string after_bar = (pieces.head.empty() ? "" : " ") + pieces.count;
  size_t used = display_width(before_bar) + display_width(after_bar);
  const size_t least = kLeastBarColumns + 1;
  for (size_t i = 0; i < pieces.more.size(); ++i) {
    const bool bar_fits = with_bar && used + least <= columns;
    const std::string text = "  " + pieces.more[i];
    const size_t width = display_width(text);
    if (used + width + (bar_fits && i >= pieces.before_bar ? least : 0) > columns) break;
    after_bar += text;
    used += width;
  }
  if (with_bar && used + least <= columns) {
    before_bar += " " + draw_bar(fraction, std::min(columns - used - 1, kMostBarColumns), utf8);
  }
  return std::string(truncate_to_width(before_bar + after_bar, columns));
}

}  // namespace

ProgressBar::ProgressBar(Options options)
    : options_(std::move(options)), utf8_(locale_is_utf8()), step_(options_.initial) {
  TORCH_CHECK_VALUE(options_.stream != nullptr, "ProgressBar: stream must not be null.");
  options_.label = printable(options_.label);
  options_.style = resolve(options_.style, options_.stream);
  if (!options_.clock) {
    options_.clock = steady_seconds;
  }
  started_ = options_.clock();
}

ProgressBar::~ProgressBar() {
  if (line_open_) {
    std::fputc('\n', options_.stream);
    std::fflush(options_.stream);
  }
}

void ProgressBar::update(int64_t step, std::string_view text, std::string_view less) {
  step_ = step;
  if (options_.style == ProgressStyle::kQuiet || finished_) {
    return;
  }
  text_.assign(text);
  less_.assign(less);
  if (const double now = options_.clock(); is_due(now)) {
    show(now);
  }
}

bool ProgressBar::is_due(double now) const {
  if (shown_step_ < 0) {
    return true;
  }
  if (options_.style == ProgressStyle::kTerminal) {
    return now - shown_at_ >= options_.redraw_seconds;
  }
  return options_.line_steps > 0 ? step_ - shown_step_ >= options_.line_steps
                                 : now - shown_at_ >= options_.line_seconds;
}

void ProgressBar::show(double now) {
  shown_at_ = now;
  shown_step_ = step_;
  draw(now);
}

void ProgressBar::draw(double now) {
  if (options_.style == ProgressStyle::kTerminal) {
    // A terminal may wrap when its last column is written, so that one stays free.
    const size_t columns = terminal_columns(options_) - 1;
    std::fprintf(options_.stream, "\r%s\x1b[K", status_line(now, columns).c_str());
    line_open_ = true;
  } else {
    std::fprintf(options_.stream, "%s\n", status_line(now, std::string::npos / 2).c_str());
  }
  std::fflush(options_.stream);
}

std::string ProgressBar::status_line(double now, size_t columns) const {
  const double elapsed = now - started_;
  const int64_t done = step_ - options_.initial;
  Pieces pieces{.head = options_.label, .count = fmt::format("{}", step_), .more = {}, .before_bar = 0};
  double fraction = 0;
  if (options_.total > 0) {
    fraction = std::clamp(static_cast<double>(step_) / static_cast<double>(options_.total), 0.0, 1.0);
    pieces.head += fmt::format("{}{:3.0f}%", pieces.head.empty() ? "" : " ", std::floor(100 * fraction));
    const std::string total = std::to_string(options_.total);
    pieces.count = fmt::format("{:>{}}/{}", step_, total.size(), total);  // of one width, so that the bar stands still
  }
  if (!options_.unit.empty()) pieces.count += " " + options_.unit;
  const std::string since_start = format_duration(elapsed) + " elapsed";
  const bool has_estimate = step_ < options_.total && done >= kStepsToEstimate;
  const double left = elapsed / static_cast<double>(done) * static_cast<double>(options_.total - step_);
  pieces.more = {has_estimate ? format_duration(std::round(left)) + " left" : since_start};
  std::ranges::copy(split_pieces(printable(text_)), std::back_inserter(pieces.more));
  pieces.before_bar = pieces.more.size();
  std::ranges::copy(split_pieces(printable(less_)), std::back_inserter(pieces.more));
  if (has_estimate) pieces.more.push_back(since_start);
  const bool with_bar = options_.style == ProgressStyle::kTerminal && options_.total > 0;
  return lay_out(pieces, columns, fraction, with_bar, utf8_);
}

void ProgressBar::print_line(std::string_view line) {
  if (options_.style == ProgressStyle::kQuiet) {
    return;
  }
  std::fprintf(options_.stream, "%s%s\n", line_open_ ? kClearLine : "", printable(line).c_str());
  if (line_open_) {
    draw(options_.clock());
  }
  std::fflush(options_.stream);
}

void ProgressBar::finish() {
  if (finished_) {
    return;
  }
  finished_ = true;
  if (options_.style == ProgressStyle::kQuiet || shown_step_ < 0) {
    return;
  }
  const bool shown = shown_step_ == step_ && options_.style == ProgressStyle::kLines;
  if (!shown) {
    draw(options_.clock());
  }
  if (line_open_) {
    std::fputc('\n', options_.stream);
    std::fflush(options_.stream);
    line_open_ = false;
  }
}

}  // namespace mezzo::text
