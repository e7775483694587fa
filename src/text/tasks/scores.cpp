#include "mezzo/text/tasks/scores.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace mezzo::text {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class A, class B>
void check_same_length(std::span<A> a, std::span<B> b, const char* what) {
  TORCH_CHECK_VALUE(a.size() == b.size(), what, ": ", a.size(), " rows beside ", b.size());
}

/// Rows by their value, the least first.
std::vector<size_t> ascending(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return values[i]; });
  return order;
}

/// Calls visit(first, end) for each run of `order` whose values are equal.
template <class Visit>
void for_each_tie(const std::vector<size_t>& order, std::span<const double> values, Visit&& visit) {
  for (size_t first = 0, end; first < order.size(); first = end) {
    end = first + 1;
    while (end < order.size() && values[order[end]] == values[order[first]]) ++end;
    visit(first, end);
  }
}

/// From 1; equal values have the mean of theirs.
std::vector<double> ranks_of(std::span<const double> values) {
  const std::vector<size_t> order = ascending(values);
  std::vector<double> ranks(values.size());
  for_each_tie(order, values, [&](size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) ranks[order[i]] = static_cast<double>(first + 1 + end) / 2;
  });
  return ranks;
}

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

double balanced_accuracy(const at::Tensor& y_true, const at::Tensor& y_pred, int64_t num_classes) {
  const auto is = at::bincount(y_true, /*weights=*/{}, num_classes);
  const auto hits = at::bincount(y_true.masked_select(y_true.eq(y_pred)), /*weights=*/{}, num_classes);
  return (hits.to(at::kDouble) / is).masked_select(is.gt(0)).mean().item<double>();
}

double matthews_corrcoef(const at::Tensor& y_true, const at::Tensor& y_pred, int64_t num_classes) {
  const auto is = at::bincount(y_true, /*weights=*/{}, num_classes).to(at::kDouble);
  const auto predicted = at::bincount(y_pred, /*weights=*/{}, num_classes).to(at::kDouble);
  const auto rows = static_cast<double>(y_true.size(0)), right = y_true.eq(y_pred).sum().item<double>();
  const auto dot = [](const at::Tensor& a, const at::Tensor& b) { return a.dot(b).item<double>(); };
  const double spread = (rows * rows - dot(is, is)) * (rows * rows - dot(predicted, predicted));
  return spread == 0 ? 0 : (right * rows - dot(is, predicted)) / std::sqrt(spread);
}

double roc_auc(std::span<const bool> is_positive, std::span<const double> scores) {
  check_same_length(is_positive, scores, "roc_auc");
  const auto positives = static_cast<double>(std::ranges::count(is_positive, true));
  const double negatives = static_cast<double>(scores.size()) - positives;
  if (positives == 0 || negatives == 0) return kNan;
  const std::vector<double> ranks = ranks_of(scores);
  double sum = 0;
  for (size_t i = 0; i < ranks.size(); ++i) sum += is_positive[i] ? ranks[i] : 0;
  return (sum - positives * (positives + 1) / 2) / (positives * negatives);
}

double average_precision(std::span<const bool> is_positive, std::span<const double> scores) {
  check_same_length(is_positive, scores, "average_precision");
  const auto positives = static_cast<double>(std::ranges::count(is_positive, true));
  if (positives == 0) return 0;
  std::vector<size_t> order = ascending(scores);
  std::ranges::reverse(order);
  double found = 0, sum = 0;
  for_each_tie(order, scores, [&](size_t first, size_t end) {
    double here = 0;
    for (size_t i = first; i < end; ++i) here += is_positive[order[i]] ? 1 : 0;
    found += here;
    sum += here * found / static_cast<double>(end);
  });
  return sum / positives;
}

double best_f1_threshold(std::span<const bool> is_positive, std::span<const double> scores) {
  check_same_length(is_positive, scores, "best_f1_threshold");
  const auto positives = static_cast<double>(std::ranges::count(is_positive, true));
  std::vector<size_t> order = ascending(scores);
  std::ranges::reverse(order);
  double threshold = 0.5, best = 0, found = 0;
  for_each_tie(order, scores, [&](size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) found += is_positive[order[i]] ? 1 : 0;
    const double f1 = 2 * found / (positives + static_cast<double>(end));
    if (f1 <= best) return;
    best = f1;
    const double score = scores[order[first]];
    threshold = (score + (end < order.size() ? scores[order[end]] : 0)) / 2;
  });
  return threshold;
}

RankingScores ranking_scores(std::span<const bool> has_label,
                             std::span<const double> probabilities,
                             size_t rows,
                             bool absent_labels_count) {
  check_same_length(has_label, probabilities, "ranking_scores");
  RankingScores sum;
  double labels = 0, counted = 0;
  for (size_t begin = 0; begin < probabilities.size(); begin += rows) {
    const auto has = has_label.subspan(begin, rows);
    const auto scores = probabilities.subspan(begin, rows);
    sum.roc_auc += roc_auc(has, scores);
    ++labels;
    if (!absent_labels_count && std::ranges::count(has, true) == 0) continue;
    sum.average_precision += average_precision(has, scores);
    ++counted;
  }
  return {sum.roc_auc / labels, sum.average_precision / counted};
}

std::vector<CalibrationBin> calibration_bins(std::span<const double> confidences,
                                             std::span<const bool> is_right,
                                             int64_t bins) {
  check_same_length(confidences, is_right, "calibration_bins");
  TORCH_CHECK_VALUE(bins > 0, "calibration_bins: bins must be at least 1, got ", bins);
  std::vector<CalibrationBin> result(static_cast<size_t>(bins));
  for (size_t i = 0; i < confidences.size(); ++i) {
    const auto bin = static_cast<int64_t>(std::ceil(confidences[i] * static_cast<double>(bins))) - 1;
    auto& [rows, confidence, accuracy] = result[static_cast<size_t>(std::clamp<int64_t>(bin, 0, bins - 1))];
    ++rows;
    confidence += confidences[i];
    accuracy += is_right[i] ? 1 : 0;
  }
  for (auto& [rows, confidence, accuracy] : result) {
    confidence /= static_cast<double>(std::max<int64_t>(rows, 1));
    accuracy /= static_cast<double>(std::max<int64_t>(rows, 1));
  }
  return result;
}

double expected_calibration_error(std::span<const CalibrationBin> bins) {
  double sum = 0;
  int64_t all = 0;
  for (const auto& [rows, confidence, accuracy] : bins) {
    sum += static_cast<double>(rows) * std::abs(confidence - accuracy);
    all += rows;
  }
  return all > 0 ? sum / static_cast<double>(all) : kNan;
}

double pearson(std::span<const double> x, std::span<const double> y) {
  check_same_length(x, y, "pearson");
  // By the values themselves: the mean of equal ones may be another in its last bit.
  const auto is_constant = [](std::span<const double> values) {
    return std::ranges::count(values, values[0]) == std::ssize(values);
  };
  if (x.size() < 2 || is_constant(x) || is_constant(y)) return kNan;
  const double mean_x = mean(x), mean_y = mean(y);
  double xx = 0, yy = 0, xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double dx = x[i] - mean_x, dy = y[i] - mean_y;
    xx += dx * dx;
    yy += dy * dy;
    xy += dx * dy;
  }
  return std::clamp(xy / (std::sqrt(xx) * std::sqrt(yy)), -1.0, 1.0);
}

double spearman(std::span<const double> x, std::span<const double> y) {
  check_same_length(x, y, "spearman");
  return pearson(ranks_of(x), ranks_of(y));
}

double mean_squared_error(std::span<const double> x, std::span<const double> y) {
  check_same_length(x, y, "mean_squared_error");
  if (x.empty()) return kNan;
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += (x[i] - y[i]) * (x[i] - y[i]);
  return sum / static_cast<double>(x.size());
}

}  // namespace mezzo::text
