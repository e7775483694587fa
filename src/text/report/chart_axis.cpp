#include "text/report/chart_axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace mezzo::text {
namespace {

constexpr double kTargetTicks = 5;
constexpr double kLargest = 1e300;  // differences of larger numbers overflow

/// The least of 1, 2 or 5 times a power of ten that is `step` or more.
double round_step(double step) {
  const double power = std::pow(10.0, std::floor(std::log10(step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= step * (1 - 1e-9)) {
      return factor * power;
    }
  }
  return 10 * power;
}

/// 3e-05 as 3e-5, 1e+06 as 1e6.
std::string short_exponent(std::string number) {
  const size_t e = number.find('e');
  if (e == std::string::npos) {
    return number;
  }
  return number.substr(0, e + 1) + std::to_string(std::stoi(number.substr(e + 1)));
}

std::string with_thousands(const std::string& number) {
  const size_t start = number.front() == '-' ? 1 : 0;
  const size_t end = std::min(number.find('.'), number.size());
  std::string out;
  for (size_t i = 0; i < number.size(); ++i) {
    if (i > start && i < end && (end - i) % 3 == 0) {
      out += ',';
    }
    out += number[i];
  }
  return out;
}

std::string tick_label(double value, double step, double greatest) {
  if (value == 0) {
    return "0";
  }
  if (greatest >= 1e6 || greatest < 1e-2) {
    return short_exponent(fmt::format("{:.4g}", value));
  }
  const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  return with_thousands(fmt::format("{:.{}f}", value, decimals));
}

}  // namespace

std::string format_count(long long value) { return with_thousands(std::to_string(value)); }

std::string format_number(double value) {
  if (!std::isfinite(value)) {
    return "non-finite";
  }
  const double magnitude = std::abs(value);
  if (magnitude >= 1000 && magnitude < 1e15) {
    return with_thousands(fmt::format("{:.{}f}", value, std::floor(value) == value || magnitude >= 1e4 ? 0 : 1));
  }
  return short_exponent(fmt::format("{:.4g}", value));
}

ChartAxis ChartAxis::whole_numbers(double low, double high) {
  ChartAxis axis;
  axis.low_ = low;
  axis.high_ = high;
  if (high <= low) {
    axis.low_ = low - 1;
    axis.high_ = low + 1;
  }
  axis.add_linear_ticks(std::max(1.0, round_step((axis.high_ - axis.low_) / (kTargetTicks + 1))));
  return axis;
}

ChartAxis ChartAxis::containing(double low, double high, AxisScale scale) {
  ChartAxis axis;
  axis.scale_ = scale;
  axis.low_ = axis.on_scale(std::clamp(low, -kLargest, kLargest));
  axis.high_ = axis.on_scale(std::clamp(high, -kLargest, kLargest));
  if (scale != AxisScale::kLinear) {
    axis.low_ = std::floor(axis.low_ + 1e-9);
    axis.high_ = std::max(std::ceil(axis.high_ - 1e-9), axis.low_ + 1);
    axis.low_ -= scale == AxisScale::kLog2 ? 1 : 0;  // keeps the curve off the foot, and a constant one in the middle
    scale == AxisScale::kLog2 ? axis.add_log2_ticks() : axis.add_log10_ticks();
    return axis;
  }
  const double magnitude = std::max(std::abs(axis.low_), std::abs(axis.high_));
  if (magnitude < 1e-290) {
    axis.high_ = 1;
  } else if (axis.high_ - axis.low_ < 1e-6 * magnitude) {
    axis.low_ -= 0.05 * magnitude;
    axis.high_ += 0.05 * magnitude;
  }
  const double step = round_step((axis.high_ - axis.low_) / kTargetTicks);
  axis.low_ = std::floor(axis.low_ / step + 1e-9) * step;
  axis.high_ = std::ceil(axis.high_ / step - 1e-9) * step;
  axis.add_linear_ticks(step);
  return axis;
}

void ChartAxis::add_linear_ticks(double step) {
  const double greatest = std::max(std::abs(low_), std::abs(high_));
  const double first = std::ceil(low_ / step - 1e-9);
  for (int i = 0; i < 3 * static_cast<int>(kTargetTicks); ++i) {
    const double value = (first + i) * step;
    if (value > high_ + 1e-6 * step) {
      break;
    }
    ticks_.push_back({value, tick_label(value, step, greatest)});
  }
}

void ChartAxis::add_log10_ticks() {
  const double decades_per_tick = std::max(1.0, std::ceil((high_ - low_) / (kTargetTicks + 1)));
  const bool with_halves = high_ - low_ <= 2;
  for (double exponent = low_; exponent <= high_; exponent += decades_per_tick) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double value = factor * std::pow(10.0, exponent);
      if (on_scale(value) <= high_ && (factor == 1 || with_halves)) {
        ticks_.push_back({value, format_number(value)});
      }
    }
  }
}

void ChartAxis::add_log2_ticks() {
  const double doublings_per_tick = std::max(1.0, std::ceil((high_ - low_) / kTargetTicks));
  for (double exponent = low_; exponent <= high_; exponent += doublings_per_tick) {
    const double value = std::exp2(exponent);
    const bool readable = low_ >= -6 && high_ < 20;
    ticks_.push_back({value, readable ? format_number(value) : fmt::format("2^{}", exponent)});
  }
}

double ChartAxis::on_scale(double value) const {
  switch (scale_) {
    case AxisScale::kLog2: return std::log2(value);
    case AxisScale::kLog10: return std::log10(value);
    default: return value;
  }
}

double ChartAxis::place(double value) const {
  return std::clamp((on_scale(std::clamp(value, -kLargest, kLargest)) - low_) / (high_ - low_), 0.0, 1.0);
}

}  // namespace mezzo::text
