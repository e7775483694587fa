#pragma once

#include <c10/util/FunctionRef.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/data/dataset.h"

namespace mezzo::text {

/// Called for the beginning of an error message.
using Where = c10::function_ref<std::string()>;

/// Refuses a label that is a list in one string, as pandas writes one into a cell: "['joy', 'love']".
void check_is_no_list(std::string_view label, const LoadRowsOptions& options, Where where);

double number_label(std::string_view number, Where where);
/// Whether a text has the label of a column: 1 or true, or else 0 or false.
bool flag_label(std::string_view value, std::string_view column, Where where);
/// The number that a label is. None for names, "007" and "nan".
std::optional<double> label_number(std::string_view label);
/// "0.5" of "0,5"; empty if `label` is not a number with a decimal comma.
std::string with_decimal_point(std::string_view label);
/// " Write 0.5 with a point." for "0,5"; else empty.
std::string advice_of_point(std::string_view label);
/// Equal for two spellings of one class: "1" and "1.0", "true" and "True".
std::string canonical_label(std::string_view label);
/// Whether programs write `label` for a missing value: NaN, and beside numbers also None, null or NA.
bool is_missing_label(std::string_view label, bool beside_numbers);
/// The names of a label of LabelKind::kClass, kSeveral or kWords; else none.
std::span<const std::string> names_of(const RawLabel& label);
/// Whether the labels of `rows` are positions in the list of labels: they are integers, and no name in `labels` is a
/// number.
bool are_positions(const LabeledRows& rows, std::span<const std::string> labels);

/// The id that is the position `integer`; none if the list of labels is shorter.
std::optional<int64_t> position_of(std::string_view integer, std::span<const std::string> labels);

}  // namespace mezzo::text
