#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace mezzo {

/// One line a row, with columns as wide as their widest cell: the first `left` of them aligned to
/// the left, the others to the right. `indent` begins each line.
inline std::string text_table(const std::vector<std::vector<std::string>>& rows,
                              size_t left,
                              const std::string& indent = "") {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    text += indent;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      text += (i == 0 ? "" : "  ") + (i < left ? row[i] + padding : padding + row[i]);
    }
    text += '\n';
  }
  return text;
}

}  // namespace mezzo
