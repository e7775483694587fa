#include "mezzo/text/tasks/metrics.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <tuple>
#include <utility>

#include "text/io/printable.h"
#include "text/io/words.h"

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

/// The average of one score over the classes, each weighted by `weight(class)`; 0 if all weights are 0.
template <class Weight>
double average(const std::vector<ClassScores>& classes, double ClassScores::* score, Weight&& weight) {
  std::vector<double> weighted, weights;
  for (const ClassScores& scores : classes) {
    weights.push_back(weight(scores));
    weighted.push_back(scores.*score * weights.back());
  }
  return divide(sum_as_numpy(weighted), sum_as_numpy(weights));
}

template <class Weight>
ClassScores average(const std::vector<ClassScores>& classes, int64_t support, Weight&& weight) {
  return {average(classes, &ClassScores::precision, weight), average(classes, &ClassScores::recall, weight),
          average(classes, &ClassScores::f1, weight), support};
}

constexpr auto kAllAlike = [](const ClassScores&) { return 1.0; };

/// Rows that have a label, were predicted to have it, and both.
struct LabelCounts {
  int64_t is = 0, predicted = 0, hits = 0;

  void add(bool is_of_it, bool was_predicted) {
    is += is_of_it;
    predicted += was_predicted;
    hits += is_of_it && was_predicted;
  }

  ClassScores scores() const {
    const auto hit = static_cast<double>(hits), of = static_cast<double>(is), guessed = static_cast<double>(predicted);
    return {divide(hit, guessed), divide(hit, of), divide(2 * hit, of + guessed), is, predicted};
  }
};

/// The report except its accuracy.
ClassificationReport report_of(const std::vector<LabelCounts>& counts, std::vector<std::string> names) {
  ClassificationReport report;
  int64_t support = 0;
  for (const LabelCounts& of_class : counts) {
    report.classes.push_back(of_class.scores());
    support += of_class.is;
  }
  report.names = std::move(names);
  report.macro_avg = average(report.classes, support, kAllAlike);
  report.weighted_avg =
      average(report.classes, support, [](const ClassScores& scores) { return static_cast<double>(scores.support); });
  return report;
}

/// A name in one cell of a table: one line, truncated if it would push all columns off the screen.
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

bool is_better(const ModelScore& score, const ModelScore& other, bool greater_is_better) {
  const auto key = [&](const ModelScore& of) {
    const bool is_defined = !std::isnan(of.value);
    const double cost = greater_is_better ? -of.value : of.value;
    return std::tuple(!is_defined, is_defined ? cost : 0, std::isnan(of.loss), std::isnan(of.loss) ? 0 : of.loss);
  };
  return key(score) < key(other);
}

ClassificationReport classification_report(std::span<const int64_t> y_true,
                                           std::span<const int64_t> y_pred,
                                           std::vector<std::string> names) {
  TORCH_CHECK_VALUE(y_true.size() == y_pred.size(), "classification_report: ", y_true.size(), " true labels but ",
                    y_pred.size(), " predicted ones.");
  TORCH_CHECK_VALUE(!y_true.empty(), "classification_report: no rows to report on.");
  const auto count = static_cast<int64_t>(names.size());
  const bool has_matrix = count <= ClassificationReport::kMaxMatrixLabels;
  std::vector<std::vector<int64_t>> confusion;
  if (has_matrix) confusion.assign(count, std::vector<int64_t>(count));
  std::vector<LabelCounts> counts(count);
  int64_t right = 0;
  for (size_t i = 0; i < y_true.size(); ++i) {
    for (const int64_t id : {y_true[i], y_pred[i]}) {
      TORCH_CHECK_VALUE(id >= 0 && id < count, "classification_report: row ", i + 1, " has label ", id,
                        ", but there are names for labels 0 to ", count - 1, " only.");
    }
    const bool is_right = y_true[i] == y_pred[i];
    counts[y_true[i]].add(true, is_right);
    if (!is_right) counts[y_pred[i]].add(false, true);
    right += is_right;
    if (has_matrix) ++confusion[y_true[i]][y_pred[i]];
  }
  size_t present = 0;  // as in scikit-learn, only labels in y_true or y_pred
  for (size_t id = 0; id < counts.size(); ++id) {
    if (counts[id].is + counts[id].predicted == 0) continue;
    counts[present] = counts[id];
    std::swap(names[present++], names[id]);
  }
  counts.resize(present);
  names.resize(present);
  ClassificationReport report = report_of(counts, std::move(names));
  report.accuracy = static_cast<double>(right) / static_cast<double>(y_true.size());
  report.confusion = std::move(confusion);
  return report;
}

ClassificationReport classification_report(std::span<const bool> y_true,
                                           std::span<const bool> y_pred,
                                           std::vector<std::string> names) {
  const size_t labels = names.size();
  TORCH_CHECK_VALUE(y_true.size() == y_pred.size() && labels > 0 && y_true.size() % labels == 0,
                    "classification_report: ", y_true.size(), " true flags and ", y_pred.size(), " predicted ones of ",
                    labels, " labels each.");
  TORCH_CHECK_VALUE(!y_true.empty(), "classification_report: no rows to report on.");
  const size_t rows = y_true.size() / labels;
  std::vector<LabelCounts> counts(labels);
  LabelCounts all;
  std::vector<ClassScores> of_rows;
  int64_t right = 0;
  for (size_t row = 0; row < rows; ++row) {
    LabelCounts of_row;
    for (size_t label = 0; label < labels; ++label) {
      const bool is = y_true[row * labels + label], predicted = y_pred[row * labels + label];
      for (LabelCounts* of : {&counts[label], &of_row, &all}) of->add(is, predicted);
    }
    right += of_row.hits == of_row.is && of_row.hits == of_row.predicted;
    of_rows.push_back(of_row.scores());
  }
  ClassificationReport report = report_of(counts, std::move(names));
  report.accuracy = static_cast<double>(right) / static_cast<double>(rows);
  report.several = {all.scores(), average(of_rows, all.is, kAllAlike)};
  return report;
}

ClassificationReport found_report(std::span<const int64_t> is,
                                  std::span<const int64_t> predicted,
                                  std::span<const int64_t> hits,
                                  std::vector<std::string> names) {
  TORCH_CHECK_VALUE(is.size() == names.size() && predicted.size() == names.size() && hits.size() == names.size(),
                    "found_report: counts of ", is.size(), ", ", predicted.size(), " and ", hits.size(), " names for ",
                    names.size());
  std::vector<LabelCounts> counts;
  LabelCounts all;
  for (size_t i = 0; i < names.size(); ++i) {
    counts.push_back({is[i], predicted[i], hits[i]});
    all = {all.is + is[i], all.predicted + predicted[i], all.hits + hits[i]};
  }
  ClassificationReport report = report_of(counts, std::move(names));
  report.several = {all.scores(), std::nullopt};
  return report;
}

std::vector<std::string> ClassificationReport::never_predicted() const {
  std::vector<std::string> labels;
  for (size_t i = 0; i < names.size(); ++i) {
    if (classes[i].support > 0 && classes[i].predicted == 0) labels.push_back(names[i]);
  }
  return labels;
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
  text += several ? "\n" + line("micro avg", several->micro_avg)
                  : fmt::format("\n{}  {:>9} {:>9} {:>9.{}f} {:>9}\n", align_right("accuracy", width), "", "", accuracy,
                                digits, macro_avg.support);
  text += line("macro avg", macro_avg) + line("weighted avg", weighted_avg);
  return several && several->samples_avg ? text + line("samples avg", *several->samples_avg) : text;
}

}  // namespace mezzo::text
