#include "text/data/raw_label.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "text/io/printable.h"
#include "text/io/utf8.h"

namespace mezzo::text {
namespace {

/// As JSON and Python write whole numbers: "7" and "-7", not "07", "+7" or " 7".
bool is_integer(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !text.empty() && std::ranges::all_of(text, is_digit) && (text[0] != '0' || text.size() == 1);
}

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

void check_is_no_list(std::string_view label, const LoadRowsOptions& options, Where where) {
  const LabelKind kind = options.label_kind();
  if (kind != LabelKind::kClass && kind != LabelKind::kSeveral) return;
  TORCH_CHECK_VALUE(
      !is_list(label), where(), "the label ", quoted_name(label),
      " is a list in one string. Write several labels as joy|love in a cell, or as an array in JSON",
      kind == LabelKind::kClass ? ", with " + options.on_other_task() + " multi_label_classification." : ".");
}

std::string advice_of_point(std::string_view label) {
  const std::string number = with_decimal_point(label);
  return number.empty() ? "" : fmt::format(" Write {} with a point.", number);
}

double number_label(std::string_view number, Where where) {
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  TORCH_CHECK_VALUE(error == std::errc() && end == number.data() + number.size() && std::isfinite(value), where(),
                    "label ", quoted_name(number), " is not a finite number.", advice_of_point(number));
  return value;
}

bool flag_label(std::string_view value, std::string_view column, Where where) {
  const std::string flag = canonical_label(value);
  TORCH_CHECK_VALUE(!value.empty(), where(), "the row has no label in '", printable(column),
                    "'. Write 0 or 1, or remove the row.");
  TORCH_CHECK_VALUE(flag == "1" || flag == "true" || flag == "0" || flag == "false", where(), "label ",
                    quoted_name(value), " in '", printable(column),
                    "' is not 0, 1, true or false. Several label columns say which labels a text has.");
  return flag == "1" || flag == "true";
}

std::optional<double> label_number(std::string_view label) {
  const std::string_view digits = label.substr(label.starts_with('-') ? 1 : 0);
  const bool may_be = !digits.empty() && digits.find_first_not_of("0123456789.eE+-") == digits.npos &&
                      (digits[0] != '0' || digits.size() == 1 || digits.find_first_of(".eE") == 1);
  double value = 0;
  const char* const end = label.data() + label.size();
  const auto read = may_be ? std::from_chars(label.data(), end, value) : std::from_chars_result{};
  return may_be && read.ec == std::errc() && read.ptr == end && std::isfinite(value) ? std::optional(value)
                                                                                     : std::nullopt;
}

std::string with_decimal_point(std::string_view label) {
  std::string number(label);
  const size_t comma = number.find(',');
  if (comma == number.npos) return "";
  number[comma] = '.';
  return label_number(number) ? number : "";
}

std::string canonical_label(std::string_view label) {
  constexpr double kExact = 9007199254740992;  // whole numbers below it are doubles
  if (is_integer(label)) return label == "-0" ? "0" : std::string(label);
  if (const auto number = label_number(label)) {
    const bool is_whole = *number == std::trunc(*number) && std::abs(*number) < kExact;
    return is_whole ? std::to_string(static_cast<int64_t>(*number)) : fmt::format("{}", *number);
  }
  std::string folded = ascii_lower(label);
  return folded == "true" || folded == "false" ? folded : std::string(label);
}

bool is_missing_label(std::string_view label, bool beside_numbers) {
  constexpr std::string_view kNames[] = {"none", "null", "na", "n/a", "<na>", "#n/a"};
  const std::string name = ascii_lower(label);
  return name == "nan" || (beside_numbers && std::ranges::find(kNames, name) != std::end(kNames));
}

std::span<const std::string> names_of(const RawLabel& label) {
  if (const auto* name = std::get_if<std::string>(&label)) return {name, 1};
  const auto* names = std::get_if<std::vector<std::string>>(&label);
  return names != nullptr ? std::span<const std::string>(*names) : std::span<const std::string>();
}

bool are_positions(const LabeledRows& rows, std::span<const std::string> labels) {
  const auto is_number = [](const std::string& name) { return label_number(name).has_value(); };
  return std::ranges::none_of(labels, is_number) && std::ranges::all_of(rows.labels, [](const RawLabel& label) {
           const auto* name = std::get_if<std::string>(&label);
           return name != nullptr && is_integer(*name);
         });
}

std::optional<int64_t> position_of(std::string_view integer, std::span<const std::string> labels) {
  int64_t id = -1;
  const auto error = std::from_chars(integer.data(), integer.data() + integer.size(), id).ec;
  return error == std::errc() && id >= 0 && id < std::ssize(labels) ? std::optional(id) : std::nullopt;
}

}  // namespace mezzo::text
