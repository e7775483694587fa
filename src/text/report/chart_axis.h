#pragma once

#include <string>
#include <vector>

namespace mezzo::text {

enum class AxisScale { kLinear, kLog2, kLog10 };

/// Where the numbers of an axis lie: a range, ticks at round numbers within it, and
/// the way from value to place.
class ChartAxis {
 public:
  struct Tick {
    double value;
    std::string label;
  };

  /// An axis of whole numbers from `low` to `high`, such as steps.
  static ChartAxis whole_numbers(double low, double high);

  /// An axis that holds `low` to `high`, widened to round numbers. Values of a
  /// logarithmic axis must be above 0.
  static ChartAxis containing(double low, double high, AxisScale scale);

  /// 0 at the low end, 1 at the high end; never NaN or outside for a finite value.
  double place(double value) const;

  AxisScale scale() const { return scale_; }
  const std::vector<Tick>& ticks() const { return ticks_; }

 private:
  AxisScale scale_ = AxisScale::kLinear;
  double low_ = 0;  // on the scale: log2 or log10 of the value for a logarithmic axis
  double high_ = 1;
  std::vector<Tick> ticks_;

  double on_scale(double value) const;
  void add_linear_ticks(double step);
  void add_log10_ticks();
  void add_log2_ticks();
};

/// A number for people: four digits, thousands parted: 0.4123, 65,536, 3e-5.
std::string format_number(double value);

/// A count with its thousands parted: 179,422.
std::string format_count(long long value);

}  // namespace mezzo::text
