#include "mezzo/text/io/nearest_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/io/utf8.h"

namespace mezzo::text {
namespace {

std::string spelling(std::string_view name) {
  std::string result = ascii_lower(name);
  std::ranges::replace(result, '_', '-');
  return result;
}

/// Edits between two names: row i of the table holds those from the first i letters of `a`.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last, last, row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before_last = std::exchange(last, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
  }
  return row.back();
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view name, std::span<const std::string> candidates, size_t most) {
  const std::string wanted = spelling(name);
  size_t limit = std::clamp<size_t>(wanted.size() / 3, 1, most);
  std::optional<std::string> nearest;
  for (const std::string& candidate : candidates) {
    const size_t longer = std::max(candidate.size(), wanted.size());
    const size_t shorter = std::min(candidate.size(), wanted.size());
    if (longer - shorter > limit || shorter == 0) continue;  // too far, and not worth a table, however long
    const size_t distance = edits(wanted, spelling(candidate));
    if (distance > limit || (nearest && distance == limit)) continue;
    nearest = candidate;
    limit = distance;
  }
  return nearest;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> candidates) {
  const auto nearest = nearest_name(name, candidates);
  return nearest ? fmt::format(" Did you mean '{}'?", *nearest) : "";
}

}  // namespace mezzo::text
