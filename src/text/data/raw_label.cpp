#include "text/data/raw_label.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/io/utf8.h"
#include "text/words/printable.h"

namespace mezzo::text {
namespace {

/// Each label costs a row of the classifier; a larger integer is no label
/// but somebody's identifier.
constexpr int64_t kMaxIntegerLabel = 999'999;

}  // namespace

int64_t integer_label(std::string_view number, const std::string& where) {
  TORCH_CHECK_VALUE(
      number.find_first_of(".eE") == number.npos, where, "label ", number,
      " is not a whole number. Labels are integers from 0, or strings; --task regression learns numbers.");
  TORCH_CHECK_VALUE(!number.starts_with('-'), where, "label ", number,
                    " is negative. Labels are integers from 0, or strings.");
  int64_t value = 0;
  const auto result = std::from_chars(number.data(), number.data() + number.size(), value);
  TORCH_CHECK_VALUE(result.ec == std::errc() && value <= kMaxIntegerLabel, where, "label ", number, " is above ",
                    kMaxIntegerLabel, ". Number the labels from 0, or write them as strings.");
  return value;
}

double number_label(std::string_view number, const std::string& where) {
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  TORCH_CHECK_VALUE(error == std::errc() && end == number.data() + number.size() && std::isfinite(value), where,
                    "label ", quoted_name(number), " is not a finite number.");
  return value;
}

RawLabel label_set(std::vector<std::string> names, const std::string& where) {
  std::ranges::sort(names);
  names.erase(std::ranges::unique(names).begin(), names.end());
  const bool has_empty = !names.empty() && names.front().empty();
  TORCH_CHECK_VALUE(!has_empty, where, "one of the labels is an empty string. Name it, or leave it out.");
  return names;
}

}  // namespace mezzo::text
