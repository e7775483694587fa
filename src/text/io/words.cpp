#include "text/io/words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace mezzo::text {
namespace {

/// The larger unit, and the smaller one unless there is none of it.
std::string two_units(int64_t total, int64_t in_larger, std::string_view larger, std::string_view smaller) {
  const int64_t rest = total % in_larger;
  return fmt::format("{} {}", total / in_larger, larger) + (rest > 0 ? fmt::format(" {} {}", rest, smaller) : "");
}

}  // namespace

std::string counted(int64_t count, std::string_view singular, std::string_view plural) {
  if (count != 1 && plural.empty()) {
    return fmt::format("{} {}s", count, singular);
  }
  return fmt::format("{} {}", count, count == 1 ? singular : plural);
}

std::string duration_in_words(double seconds) {
  constexpr double kLongest = 1e15;  // NaN is treated as longer
  if (!(seconds < kLongest)) {
    return "–";
  }
  if (seconds < 9.95) {
    return fmt::format("{:.1f} s", std::max(seconds, 0.1));
  }
  const int64_t whole = std::llround(seconds), minutes = (whole + 30) / 60, hours = (minutes + 30) / 60;
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return two_units(whole, 60, "min", "s");
  if (minutes < 24 * 60) return two_units(minutes, 60, "h", "min");
  return two_units(hours, 24, "d", "h");
}

size_t count_code_points(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace mezzo::text
