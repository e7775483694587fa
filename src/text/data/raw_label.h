#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/data/dataset.h"

namespace mezzo::text {

// Each throws c10::ValueError, which begins with `where`.

/// Refuses a label that is a list in one string, as pandas writes one into a cell: "['joy', 'love']".
void check_is_no_list(std::string_view label, const LoadRowsOptions& options, const std::string& where);

/// @param number  as JSON writes it.
int64_t integer_label(std::string_view number, const LoadRowsOptions& options, const std::string& where);
double number_label(std::string_view number, const std::string& where);
/// A set of names: those of two rows are equal where the rows have the same labels.
RawLabel label_set(std::vector<std::string> names, const std::string& where);

}  // namespace mezzo::text
