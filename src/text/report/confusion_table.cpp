#include "text/report/confusion_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "text/report/chart_axis.h"
#include "text/report/html.h"

namespace mezzo::text {
namespace {

using Counts = std::vector<std::vector<int64_t>>;

constexpr size_t kMostLabels = 60;
constexpr size_t kDenseLabels = 14;  // from here on smaller type and upright column heads
constexpr size_t kDensestLabels = 28;
constexpr size_t kMostConfusions = 40;
constexpr size_t kFewConfusions = 10;  // beside a matrix

std::string name_of(const std::vector<std::string>& names, size_t label) {
  return escape_html(label < names.size() ? names[label] : std::to_string(label));
}

int64_t row_total(const Counts& counts, size_t row) {
  return std::accumulate(counts[row].begin(), counts[row].end(), int64_t{0});
}

int64_t column_total(const Counts& counts, size_t column) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0},
                         [&](int64_t sum, const auto& row) { return sum + row[column]; });
}

double share(int64_t part, int64_t whole) {
  return whole > 0 ? std::clamp(static_cast<double>(part) / static_cast<double>(whole), 0.0, 1.0) : 0.0;
}

std::string percent(int64_t part, int64_t whole) { return whole > 0 ? format_share(share(part, whole)) : "–"; }

std::string render_cell(const Counts& counts, const std::vector<std::string>& names, size_t row, size_t column) {
  const int64_t count = counts[row][column];
  if (count == 0) {
    return row == column ? "<td class=\"zero hit\">0</td>" : "<td class=\"zero\">0</td>";
  }
  const int64_t total = row_total(counts, row);
  const double heat = share(count, total);
  return fmt::format("<td class=\"{}{}\" style=\"--a:{:.2f}\" title=\"true {}, predicted {}: {} of {} ({})\">{}</td>",
                     row == column ? "hit" : "miss", row == column && heat > 0.85 ? " hot" : "", 0.08 + 0.87 * heat,
                     name_of(names, row), name_of(names, column), format_count(count), format_count(total),
                     percent(count, total), format_count(count));
}

std::string render_matrix(const Counts& counts, const std::vector<std::string>& names) {
  const size_t size = counts.size();
  std::string out = fmt::format("<table class=\"confusion{}\"><thead><tr><td class=\"corner\">true ↓ predicted →</td>",
                                size >= kDensestLabels ? " dense densest"
                                : size >= kDenseLabels ? " dense"
                                                       : "");
  for (size_t column = 0; column < size; ++column) {
    const std::string name = name_of(names, column);
    out += "<th scope=\"col\" title=\"" + name + "\"><span>" + name + "</span></th>";
  }
  out += "<th class=\"edge\">recall</th><th class=\"edge\">texts</th></tr></thead><tbody>\n";
  for (size_t row = 0; row < size; ++row) {
    const std::string name = name_of(names, row);
    out += "<tr><th scope=\"row\" title=\"" + name + "\">" + name + "</th>";
    for (size_t column = 0; column < size; ++column) {
      out += render_cell(counts, names, row, column);
    }
    const int64_t total = row_total(counts, row);
    out += "<td class=\"edge\">" + percent(counts[row][row], total) + "</td><td class=\"edge\">" + format_count(total) +
           "</td></tr>\n";
  }
  out += "<tr><th scope=\"row\" class=\"edge\">precision</th>";
  for (size_t column = 0; column < size; ++column) {
    out += "<td class=\"edge\">" + percent(counts[column][column], column_total(counts, column)) + "</td>";
  }
  return out + "<td></td><td></td></tr></tbody></table>";
}

/// Of one label; a division by 0 gives 0, as in scikit-learn.
struct LabelQuality {
  size_t label;
  int64_t support, predicted, right;
  double precision() const { return share(right, predicted); }
  double recall() const { return share(right, support); }
  double f1() const { return share(2 * right, support + predicted); }
};

struct Confusion {
  size_t row;
  size_t column;
  int64_t count;
};

/// The commonest, `most` at most.
std::vector<Confusion> commonest(const Counts& counts, size_t most) {
  std::vector<Confusion> confusions;
  for (size_t row = 0; row < counts.size(); ++row) {
    for (size_t column = 0; column < counts.size(); ++column) {
      if (row != column && counts[row][column] > 0) {
        confusions.push_back({row, column, counts[row][column]});
      }
    }
  }
  std::stable_sort(confusions.begin(), confusions.end(), [](auto& a, auto& b) { return a.count > b.count; });
  confusions.resize(std::min(confusions.size(), most));
  return confusions;
}

std::string render_confusions(const std::vector<Confusion>& confusions,
                              const Counts& counts,
                              const std::vector<std::string>& names) {
  std::string out = table_head({"true", "predicted", "times", "of the label"});
  for (const Confusion& confusion : confusions) {
    out += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n", name_of(names, confusion.row),
                       name_of(names, confusion.column), format_count(confusion.count),
                       percent(confusion.count, row_total(counts, confusion.row)));
  }
  return out + "</tbody></table>";
}

}  // namespace

std::string render_confusion(const Counts& counts, const std::vector<std::string>& label_names) {
  if (counts.size() <= kMostLabels) {
    return scroll_region("Confusion matrix", "scroll") + render_matrix(counts, label_names) + "</div>\n";
  }
  const auto confusions = commonest(counts, kMostConfusions);
  return fmt::format(
             "<p class=\"unit\">{} labels are too many for a matrix; these are the {} most frequent confusions.</p>",
             format_count(static_cast<long long>(counts.size())), confusions.size()) +
         scroll_region("Most frequent confusions", "scroll") + render_confusions(confusions, counts, label_names) +
         "</div>\n";
}

std::string render_most_confused(const Counts& counts, const std::vector<std::string>& label_names) {
  const auto confusions = commonest(counts, kFewConfusions);
  return counts.size() > kMostLabels || confusions.empty()
             ? ""
             : scroll_region("Most confused", "scroll") + render_confusions(confusions, counts, label_names) +
                   "</div>\n";
}

std::string render_labels(const Counts& counts, const std::vector<std::string>& label_names) {
  std::vector<LabelQuality> labels;
  int64_t all = 0;
  for (size_t label = 0; label < counts.size(); ++label) {
    labels.push_back({label, row_total(counts, label), column_total(counts, label), counts[label][label]});
    all += labels.back().support;
  }
  if (all == 0) {
    return "";
  }
  std::string out;
  if (labels.size() > kMostLabels) {
    std::ranges::stable_sort(labels, {}, &LabelQuality::f1);
    labels.resize(kMostLabels);
    out += fmt::format("<p class=\"unit\">The {} labels of the lowest F1.</p>", kMostLabels);
  }
  out +=
      scroll_region("Labels", "scroll") + table_head({"label", "support", "precision", "recall", "F1"}, "pairs labels");
  const auto bar = [](double value) { return bar_cell(value, format_share(value)); };
  for (const LabelQuality& label : labels) {
    out += "<tr><th scope=\"row\">" + name_of(label_names, label.label) + "</th><td>" + format_count(label.support) +
           "</td>" + bar(label.precision()) + bar(label.recall()) + bar(label.f1()) + "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

}  // namespace mezzo::text
