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

}  // namespace mezzo::text
