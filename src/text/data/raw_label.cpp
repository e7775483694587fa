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

/// Whether each word is a number, as in "0, 1" and "0.5 -1.", and not in "18-25". NumPy writes "..." for the middle of
/// a long array.
bool are_numbers(std::string_view text) {
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find_first_of(" ,\n"));
    const char* const end = word.data() + word.size();
    double number = 0;
    if (!word.empty() && word != "..." && std::from_chars(word.data(), end, number).ptr != end) return false;
    text.remove_prefix(std::min(word.size() + 1, text.size()));
  }
  return true;
}

/// Whether Python, NumPy or JSON wrote a list, tuple or set. A name in brackets, as [URL], is none.
bool is_list(std::string_view text) {
  const char open = text.empty() ? '\0' : text.front();
  const char close = open == '[' ? ']' : open == '(' ? ')' : open == '{' ? '}' : '\0';
  if (close == '\0' || text.size() < 2 || text.back() != close) return false;
  text = text.substr(1, text.size() - 2);
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  const bool has_digit = text.find_first_of("0123456789") != text.npos;
  return text.starts_with('\'') || text.starts_with('"') ||
         (open == '[' && (text.empty() || (has_digit && are_numbers(text))));
}

}  // namespace

void check_is_no_list(std::string_view label, const LoadRowsOptions& options, const std::string& where) {
  const LabelKind kind = options.label_kind();
  if (kind != LabelKind::kClass && kind != LabelKind::kSeveral) return;
  TORCH_CHECK_VALUE(
      !is_list(label), where, "the label ", quoted_name(label),
      " is a list in one string. Write several labels as joy|love in a cell, as an array in JSON",
      kind == LabelKind::kClass ? ", with " + options.on_other_task() + " multi_label_classification." : ".");
}

int64_t integer_label(std::string_view number, const LoadRowsOptions& options, const std::string& where) {
  TORCH_CHECK_VALUE(number.find_first_of(".eE") == number.npos, where, "label ", number,
                    " is not a whole number. Labels are integers from 0, or strings. Other numbers need ",
                    options.on_other_task(), " regression.");
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
