#include "text/report/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "text/report/chart_axis.h"
#include "text/report/html.h"

namespace mezzo::text {
namespace {

// In the units of the viewBox, about a pixel each.
constexpr double kWidth = 520;
constexpr double kHeight = 230;
constexpr double kLeft = 58;
constexpr double kRight = kWidth - 14;
constexpr double kTop = 12;
constexpr double kBottom = kHeight - 36;
constexpr size_t kHoverColumns = 120;
constexpr size_t kFewPoints = 30;  // few enough to show each one on its line

template <class... Args>
void add(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

struct ValueRange {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  bool empty() const { return low > high; }
  void include(double value) {
    if (std::isfinite(value)) {
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
};

ValueRange range_of_x(const Chart& chart) {
  ValueRange range;
  if (chart.x_range) {
    range.include(chart.x_range->first);
    range.include(chart.x_range->second);
  }
  for (const ChartSeries& series : chart.series) {
    std::for_each(series.x.begin(), series.x.end(), [&](double x) { range.include(x); });
  }
  std::for_each(chart.marks.begin(), chart.marks.end(), [&](double x) { range.include(x); });
  return range;
}

ValueRange range_of_y(const Chart& chart) {
  ValueRange range;
  for (const ChartSeries& series : chart.series) {
    std::for_each(series.y.begin(), series.y.end(), [&](double y) { range.include(y); });
  }
  return range;
}

ChartAxis make_y_axis(const Chart& chart, ValueRange range) {
  if (range.low > 0 && chart.scale == Chart::Scale::kLog2) {
    return ChartAxis::containing(range.low, range.high, AxisScale::kLog2);
  }
  if (range.low > 0 && chart.scale == Chart::Scale::kLogIfWide && range.high / range.low > 1000) {
    return ChartAxis::containing(range.low, range.high, AxisScale::kLog10);
  }
  return ChartAxis::containing(chart.from_zero ? std::min(0.0, range.low) : range.low, range.high, AxisScale::kLinear);
}

/// The axes, and the places of values in the drawing.
struct Frame {
  ChartAxis x_axis;
  ChartAxis y_axis;

  double x(double value) const { return kLeft + (kRight - kLeft) * x_axis.place(value); }
  double y(double value) const { return kBottom - (kBottom - kTop) * y_axis.place(value); }
};

/// The points to draw: of those in one pixel column, the first, least, greatest and last,
/// so that no spike is lost.
std::vector<size_t> thin_out(const ChartSeries& series, const Frame& frame) {
  std::vector<size_t> kept;
  const size_t size = series.x.size();
  const auto column = [&](size_t i) { return std::floor(frame.x(series.x[i])); };
  const auto below = [&](size_t a, size_t b) { return series.y[a] < series.y[b]; };
  for (size_t begin = 0; begin < size;) {
    const bool finite = std::isfinite(series.y[begin]);
    size_t end = begin + 1;
    while (end < size && column(end) == column(begin) && std::isfinite(series.y[end]) == finite) {
      ++end;
    }
    size_t least = begin;
    size_t greatest = begin;
    for (size_t i = begin; finite && i < end; ++i) {
      least = below(i, least) ? i : least;
      greatest = below(greatest, i) ? i : greatest;
    }
    const size_t start = kept.size();
    for (const size_t i : {begin, std::min(least, greatest), std::max(least, greatest), end - 1}) {
      if (kept.size() == start || kept.back() != i) {
        kept.push_back(i);
      }
    }
    begin = end;
  }
  return kept;
}

std::string path_of(const ChartSeries& series, const Frame& frame) {
  std::string path;
  bool pen_down = false;
  double last_y = 0;
  for (const size_t i : thin_out(series, frame)) {
    if (!std::isfinite(series.y[i])) {
      pen_down = false;
      continue;
    }
    const double x = frame.x(series.x[i]);
    const double y = frame.y(series.y[i]);
    if (!pen_down) {
      add(path, "M{:.2f} {:.2f}h0", x, y);  // h0: a lone point shows, too
    } else if (series.look == ChartSeries::Look::kSteps) {
      add(path, "H{:.2f}", x);
      if (y != last_y) {
        add(path, "V{:.2f}", y);
      }
    } else {
      add(path, "L{:.2f} {:.2f}", x, y);
    }
    pen_down = true;
    last_y = y;
  }
  return path;
}

void add_grid(std::string& svg, const Frame& frame, const std::string& x_name) {
  for (const ChartAxis::Tick& tick : frame.y_axis.ticks()) {
    const double y = frame.y(tick.value);
    add(svg, "<g class=\"ty\" data-v=\"{}\"><path class=\"grid\" d=\"M{} {:.2f}H{}\"/>", tick.value, kLeft, y, kRight);
    add(svg, "<text x=\"{}\" y=\"{:.2f}\" text-anchor=\"end\">{}</text></g>", kLeft - 8, y + 4, tick.label);
  }
  for (const ChartAxis::Tick& tick : frame.x_axis.ticks()) {
    const double x = frame.x(tick.value);
    add(svg, "<g class=\"tx\" data-v=\"{}\"><path class=\"tick\" d=\"M{:.2f} {}v4\"/>", tick.value, x, kBottom);
    add(svg, "<text x=\"{:.2f}\" y=\"{}\" text-anchor=\"middle\">{}</text></g>", x, kBottom + 17, tick.label);
  }
  add(svg, "<path class=\"axis\" d=\"M{} {}H{}\"/>", kLeft, kBottom, kRight);
  add(svg, "<text class=\"unit\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>", kRight, kHeight - 4,
      escape_html(x_name));
}

void add_points(std::string& svg, const ChartSeries& series, const Frame& frame, const std::string& x_name) {
  for (const size_t i : thin_out(series, frame)) {
    if (std::isfinite(series.y[i])) {
      add(svg, "<circle class=\"dot c{}\" cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"4\" data-x=\"{}\" data-y=\"{}\">",
          series.color, frame.x(series.x[i]), frame.y(series.y[i]), series.x[i], series.y[i]);
      add(svg, "<title>{} {}\n{} {}</title></circle>", escape_html(x_name), format_number(series.x[i]),
          escape_html(series.name), format_number(series.y[i]));
    }
  }
}

bool has_points(const ChartSeries& series) {
  return series.look == ChartSeries::Look::kPoints || series.look == ChartSeries::Look::kScatter;
}

void add_series(std::string& svg, const ChartSeries& series, const Frame& frame) {
  if (series.look == ChartSeries::Look::kScatter) {
    return;  // its points come last
  }
  const char* look = series.look == ChartSeries::Look::kThin     ? "thin"
                     : series.look == ChartSeries::Look::kPoints ? "link"  // leads the eye from point to point
                                                                 : "line";
  add(svg, "<path class=\"{} c{}\" d=\"{}\"/>", look, series.color, path_of(series, frame));
  if (series.look == ChartSeries::Look::kLine && series.x.size() <= kFewPoints) {
    for (size_t i = 0; i < series.x.size(); ++i) {
      if (std::isfinite(series.y[i])) {
        add(svg, "<circle class=\"few c{}\" cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"3\"/>", series.color, frame.x(series.x[i]),
            frame.y(series.y[i]));
      }
    }
  }
}

std::string hover_title(const Chart& chart, size_t i) {
  const ChartSeries& first = chart.series.front();
  std::string title = fmt::format("{} {}", escape_html(chart.x_name), format_number(first.x[i]));
  for (const ChartSeries& series : chart.series) {
    if (i < series.x.size() && series.x[i] == first.x[i]) {
      add(title, "\n{} {}", escape_html(series.name), format_number(series.y[i]));
    }
  }
  return title;
}

/// Columns to hover over, at most kHoverColumns; each shows a dot on the first
/// series and the values of all.
void add_hover_columns(std::string& svg, const Chart& chart, const Frame& frame) {
  const ChartSeries& first = chart.series.front();
  const size_t size = first.x.size();
  if (has_points(first) || size == 0) {
    return;
  }
  const size_t columns = std::min(size, kHoverColumns);
  const auto index = [&](size_t column) { return columns == 1 ? 0 : column * (size - 1) / (columns - 1); };
  const auto x_of = [&](size_t column) { return frame.x(first.x[index(column)]); };
  for (size_t column = 0; column < columns; ++column) {
    const size_t i = index(column);
    if (!std::isfinite(first.y[i])) {
      continue;
    }
    const double x = x_of(column);
    const double left = column == 0 ? kLeft : (x_of(column - 1) + x) / 2;
    const double right = column + 1 == columns ? kRight : (x + x_of(column + 1)) / 2;
    add(svg, "<g class=\"h\" data-x=\"{}\" data-y=\"{}\"><path class=\"hit\" d=\"M{:.1f} {}H{:.1f}V{}H{:.1f}z\"/>",
        first.x[i], first.y[i], left, kTop, right, kBottom, left);
    add(svg, "<circle class=\"c{}\" cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"4\"/><title>{}</title></g>", first.color, x,
        frame.y(first.y[i]), hover_title(chart, i));
  }
}

void add_marks(std::string& svg, const Chart& chart, const Frame& frame) {
  const auto column = [&](double step) { return std::floor(frame.x(step) / 3); };
  for (auto begin = chart.marks.begin(); begin != chart.marks.end();) {
    const auto end = std::find_if(begin, chart.marks.end(), [&](double x) { return column(x) != column(*begin); });
    const auto count = end - begin;
    add(svg, "<g class=\"mark\"><path d=\"M{:.2f} {}v-9\"/><title>", frame.x(*begin), kBottom);
    if (count == 1) {
      add(svg, "{}: {} {}", escape_html(chart.mark_name), escape_html(chart.x_name), format_number(*begin));
    } else {
      add(svg, "{} {}s: {}s {} to {}", count, escape_html(chart.mark_name), escape_html(chart.x_name),
          format_number(*begin), format_number(*(end - 1)));
    }
    svg += "</title></g>";
    begin = end;
  }
}

/// What the curves show, as numbers: all rows of series that have so few, and others as far apart.
constexpr size_t kMostRows = 100;

std::string render_data(const Chart& chart) {
  std::map<double, std::vector<double>> rows;  // by x, a value a series
  std::set<double> wanted;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const ChartSeries& series = chart.series[i];
    if (series.x.size() <= kMostRows) {
      wanted.insert(series.x.begin(), series.x.end());
    }
    for (size_t k = 0; k < series.x.size(); ++k) {
      auto& row = rows[series.x[k]];
      row.resize(chart.series.size(), std::numeric_limits<double>::quiet_NaN());
      row[i] = series.y[k];
    }
  }
  if (rows.empty()) {
    return "";
  }
  const std::string title = escape_html(chart.title), x_name = escape_html(chart.x_name);
  std::string out = "<details><summary>Values of " + title + "</summary>";
  const size_t count = std::min(rows.size(), kMostRows);
  auto row = rows.begin();
  for (size_t shown = 0, at = 0; shown < count; ++shown) {
    const size_t next = count == 1 ? 0 : shown * (rows.size() - 1) / (count - 1);  // the first and the last among them
    std::advance(row, next - at);
    at = next;
    wanted.insert(row->first);
  }
  if (rows.size() > wanted.size()) {
    add(out, "<p>{} of {} {}s.</p>", wanted.size(), format_count(static_cast<long long>(rows.size())), x_name);
  }
  out +=
      scroll_region("Values of " + chart.title, "scroll") + "<table><thead><tr><th scope=\"col\">" + x_name + "</th>";
  for (const ChartSeries& series : chart.series) {
    out += "<th scope=\"col\">" + escape_html(series.name) + "</th>";
  }
  out += "</tr></thead><tbody>\n";
  for (const double x : wanted) {
    out += "<tr><th scope=\"row\">" + format_number(x) + "</th>";
    for (const double value : rows.at(x)) {
      out += "<td>" + (std::isfinite(value) ? format_number(value) : "") + "</td>";
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div></details>";
}

std::string render_caption(const Chart& chart, const std::optional<Frame>& frame) {
  std::string out = "<figcaption><b>" + escape_html(chart.title) + "</b>";
  const bool log = frame && frame->y_axis.scale() != AxisScale::kLinear;
  const std::string unit = chart.unit + (log ? (chart.unit.empty() ? "log scale" : ", log scale") : "");
  if (!unit.empty()) {
    out += "<span class=\"unit\">" + escape_html(unit) + "</span>";
  }
  out += "<span class=\"legend\">";
  for (const ChartSeries& series : chart.series) {
    const bool drawn = std::any_of(series.y.begin(), series.y.end(), [](double y) { return std::isfinite(y); });
    if (drawn && chart.series.size() > 1) {
      const char* look = series.look == ChartSeries::Look::kThin ? "thin" : has_points(series) ? "dots" : "line";
      add(out, "<span class=\"key {} c{}\">{}</span>", look, series.color, escape_html(series.name));
    }
  }
  if (!chart.marks.empty()) {
    const size_t count = chart.marks.size();
    add(out, "<span class=\"key marks\">{} {}{}</span>", format_count(static_cast<long long>(count)),
        escape_html(chart.mark_name), count == 1 ? "" : "s");
  }
  return out + "</span></figcaption>";
}

}  // namespace

ChartSeries smoothed(const ChartSeries& raw) {
  ChartSeries series = raw;
  series.name = "smoothed";
  series.look = ChartSeries::Look::kLine;
  const double window = std::max(5.0, static_cast<double>(raw.y.size()) / 30);
  const double keep = 1 - 2 / (window + 1);
  double sum = 0;
  double weight = 0;
  for (double& y : series.y) {
    if (std::isfinite(y)) {
      sum = keep * sum + (1 - keep) * y;
      weight = keep * weight + (1 - keep);
      y = sum / weight;
    }
  }
  return series;
}

std::string render_chart(const Chart& chart) {
  const ValueRange x = range_of_x(chart);
  const ValueRange y = range_of_y(chart);
  std::optional<Frame> frame;
  if (!x.empty() && !y.empty()) {
    frame = Frame{ChartAxis::whole_numbers(x.low, x.high), make_y_axis(chart, y)};
  }
  std::string out = "<figure>" + render_caption(chart, frame);
  add(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">", kWidth,
      kHeight, escape_html(chart.title));
  if (frame) {
    add_grid(out, *frame, chart.x_name);
    for (const ChartSeries& series : chart.series) {
      add_series(out, series, *frame);
    }
    add_hover_columns(out, chart, *frame);
    add_marks(out, chart, *frame);
    for (const ChartSeries& series : chart.series) {
      if (has_points(series)) {
        add_points(out, series, *frame, chart.x_name);
      }
    }
  } else {
    add(out, "<text class=\"none\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">no data</text>", kWidth / 2, kHeight / 2);
  }
  return out + "</svg>" + render_data(chart) + "</figure>\n";
}

}  // namespace mezzo::text
