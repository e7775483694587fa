#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mezzo::text {

/// One curve. A y that is not finite leaves a gap.
struct ChartSeries {
  /// kPoints are joined by a thin line, kScatter are not.
  enum class Look { kThin, kLine, kSteps, kPoints, kScatter };

  std::string name;
  Look look = Look::kLine;
  int color = 1;  ///< 1 to 8: the page's --c1 to --c8
  std::vector<double> x;
  std::vector<double> y;
};

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Fewer steps are drawn without a smoothed line.
inline constexpr size_t kLeastStepsToSmooth = 20;

/// The exponential moving average over about a thirtieth of the values, without the pull towards zero at the start; a
/// line, called "smoothed".
ChartSeries smoothed(const ChartSeries& raw);

/// A chart over the steps of a run.
struct Chart {
  enum class Scale { kLinear, kLogIfWide, kLog2 };

  std::string title;
  std::string unit;  ///< beside the title; empty for plain numbers
  std::vector<ChartSeries> series;
  std::optional<std::pair<double, double>> x_range;  ///< unless the x of the series themselves give it
  std::string x_name = "step";                       ///< below the x axis
  std::vector<double> marks;                         ///< steps to mark at the foot, such as skipped ones
  std::string mark_name;                             ///< "skipped step"; several take an s
  Scale scale = Scale::kLinear;  ///< kLogIfWide: logarithmic when the values span more than three powers of ten
  bool from_zero = true;         ///< the y axis of a linear chart begins at 0 unless a value lies below
};

/// The chart as a `<figure>`: caption with legend, and an `<svg>` that takes the width it is
/// given. Hovering shows the values. Each point and each column to hover over
/// carries `data-x` and `data-y`.
std::string render_chart(const Chart& chart);

}  // namespace mezzo::text
