#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mezzo::text {

/// The confusion matrix `counts` ([true][predicted], square) as an HTML table, each cell tinted by
/// its share of the row, with recall and precision at the edges. Beyond 60 labels, which no screen
/// holds, the commonest confusions.
std::string render_confusion(const std::vector<std::vector<int64_t>>& counts,
                             const std::vector<std::string>& label_names);

/// The pairs of labels that are mistaken most often, as a table; empty where none are, or render_confusion() shows
/// them.
std::string render_most_confused(const std::vector<std::vector<int64_t>>& counts,
                                 const std::vector<std::string>& label_names);

/// Support, precision, recall and F1 of each label, with bars. Of more than 60 labels, the 60 with the lowest F1. Empty
/// if nothing was counted.
std::string render_labels(const std::vector<std::vector<int64_t>>& counts, const std::vector<std::string>& label_names);

}  // namespace mezzo::text
