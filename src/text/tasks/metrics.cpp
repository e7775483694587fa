#include "mezzo/text/tasks/metrics.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "text/words/printable.h"

namespace mezzo::text {
namespace {

double divide(double numerator, double denominator) { return denominator == 0 ? 0 : numerator / denominator; }

/// NumPy's order of adding. Averages must round as scikit-learn's do where their last
/// printed digit hangs on it.
double sum_as_numpy(std::span<const double> values) {
  constexpr size_t kLanes = 8, kBlock = 128;
  const size_t size = values.size();
  if (size < kLanes) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
  }
  if (size > kBlock) {
    const size_t half = size / 2 - size / 2 % kLanes;
    return sum_as_numpy(values.first(half)) + sum_as_numpy(values.subspan(half));
  }
  double lanes[kLanes];
  std::copy_n(values.begin(), kLanes, lanes);
  size_t i = kLanes;
  for (; i + kLanes <= size; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += values[i + lane];
  }
  double sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  for (; i < size; ++i) sum += values[i];
  return sum;
}

/// The average of one score over the classes, each weighted by `weight(class)`.
template <class Weight>
double average(const std::vector<ClassScores>& classes, double ClassScores::* score, Weight&& weight) {
  std::vector<double> weighted, weights;
  for (const ClassScores& scores : classes) {
    weights.push_back(weight(scores));
    weighted.push_back(scores.*score * weights.back());
  }
  return sum_as_numpy(weighted) / sum_as_numpy(weights);
}

template <class Weight>
ClassScores average(const std::vector<ClassScores>& classes, int64_t support, Weight&& weight) {
  return {average(classes, &ClassScores::precision, weight), average(classes, &ClassScores::recall, weight),
          average(classes, &ClassScores::f1, weight), support};
}

size_t count_code_points(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

/// A name in one cell of a table: of one line, and cut where it would push
/// all columns off the screen.
std::string as_cell(std::string_view name) {
  constexpr size_t kMostColumns = 40;
  std::string cell = printable(name);
  if (display_width(cell) > kMostColumns) {
    cell = std::string(truncate_to_width(cell, kMostColumns - 1)) + "…";
  }
  return cell;
}

/// fmt would count columns, of which a Chinese character takes two.
std::string align_right(std::string_view text, size_t width) {
  return std::string(width - std::min(width, count_code_points(text)), ' ').append(text);
}

}  // namespace

ClassificationReport classification_report(std::span<const int64_t> y_true,
                                           std::span<const int64_t> y_pred,
                                           std::vector<std::string> names) {
  TORCH_CHECK_VALUE(y_true.size() == y_pred.size(), "classification_report: ", y_true.size(), " true labels but ",
                    y_pred.size(), " predicted ones.");
  TORCH_CHECK_VALUE(!y_true.empty(), "classification_report: no rows to report on.");
  const auto count = static_cast<int64_t>(names.size());
  const bool has_matrix = count <= ClassificationReport::kMaxMatrixLabels;
  ClassificationReport report;
  if (has_matrix) report.confusion.assign(count, std::vector<int64_t>(count));
  std::vector<int64_t> support(count), predicted(count), hits(count);
  for (size_t i = 0; i < y_true.size(); ++i) {
    for (const int64_t id : {y_true[i], y_pred[i]}) {
      TORCH_CHECK_VALUE(id >= 0 && id < count, "classification_report: row ", i + 1, " has label ", id,
                        ", but there are names for labels 0 to ", count - 1, " only.");
    }
    ++support[y_true[i]];
    ++predicted[y_pred[i]];
    hits[y_true[i]] += y_true[i] == y_pred[i];
    if (has_matrix) ++report.confusion[y_true[i]][y_pred[i]];
  }

  for (int64_t id = 0; id < count; ++id) {
    const auto hit = static_cast<double>(hits[id]), of = static_cast<double>(support[id]);
    const auto guessed = static_cast<double>(predicted[id]);
    report.classes.push_back({divide(hit, guessed), divide(hit, of), divide(2 * hit, of + guessed), support[id]});
  }
  const int64_t right = std::accumulate(hits.begin(), hits.end(), int64_t{0});
  const auto rows = static_cast<int64_t>(y_true.size());
  report.names = std::move(names);
  report.accuracy = static_cast<double>(right) / static_cast<double>(rows);
  report.macro_avg = average(report.classes, rows, [](const ClassScores&) { return 1.0; });
  report.weighted_avg =
      average(report.classes, rows, [](const ClassScores& scores) { return static_cast<double>(scores.support); });
  return report;
}

std::string ClassificationReport::to_text(int digits) const {
  TORCH_CHECK_VALUE(digits >= 0 && digits <= 100, "classification_report: digits must be from 0 to 100, got ", digits,
                    ".");
  size_t width = std::max<size_t>(std::string_view("weighted avg").size(), digits);
  std::vector<std::string> cells;
  for (const std::string& name : names) {
    cells.push_back(as_cell(name));
    width = std::max(width, count_code_points(cells.back()));
  }

  const auto line = [&](std::string_view name, const ClassScores& scores) {
    return fmt::format("{}  {:>9.{}f} {:>9.{}f} {:>9.{}f} {:>9}\n", align_right(name, width), scores.precision, digits,
                       scores.recall, digits, scores.f1, digits, scores.support);
  };
  std::string text =
      fmt::format("{:>{}}  {:>9} {:>9} {:>9} {:>9}\n\n", "", width, "precision", "recall", "f1-score", "support");
  for (size_t i = 0; i < names.size(); ++i) text += line(cells[i], classes[i]);
  text += fmt::format("\n{}  {:>9} {:>9} {:>9.{}f} {:>9}\n", align_right("accuracy", width), "", "", accuracy, digits,
                      macro_avg.support);
  return text + line("macro avg", macro_avg) + line("weighted avg", weighted_avg);
}

}  // namespace mezzo::text
