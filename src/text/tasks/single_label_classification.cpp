#include "mezzo/text/tasks/single_label_classification.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/softmax.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "mezzo/text/tasks/scores.h"
#include "text/tasks/elements.h"
#include "text/tasks/softmax_loss.h"
#include "text/tasks/surest.h"

namespace mezzo::text {
namespace {

/// In the order of what evaluate() measures.
std::vector<MetricInfo> single_label_metrics() {
  return {{"accuracy", "accuracy"},
          {"macro_f1", "macro F1"},
          {"weighted_f1", "weighted F1"},
          {"balanced_accuracy", "balanced accuracy"},
          {"matthews_corrcoef", "Matthews correlation", /*is_share=*/false},
          {"roc_auc", "ROC AUC"},
          {"average_precision", "average precision"},
          {"log_loss", "log loss", /*is_share=*/false, /*greater_is_better=*/false},
          {"expected_calibration_error", "calibration error", /*is_share=*/true, /*greater_is_better=*/false}};
}

/// Of each row the value of that label, [rows].
at::Tensor of_labels(const at::Tensor& rows, const at::Tensor& labels) {
  return rows.gather(1, labels.unsqueeze(1)).squeeze(1);
}

std::vector<CalibrationBin> calibration_of(const at::Tensor& probabilities,
                                           const at::Tensor& targets,
                                           const at::Tensor& predicted) {
  const auto confidences = of_labels(probabilities, predicted), is_right = predicted.eq(targets);
  return calibration_bins(elements<double>(confidences), elements<bool>(is_right));
}

/// Log loss is convex in 1 / temperature, and its slope rises through 0 at the least.
double fit_temperature(const at::Tensor& outputs, const at::Tensor& targets) {
  constexpr double kMost = 100;
  const auto x = outputs.to(at::kDouble);
  const auto of_target = of_labels(x, targets).sum();
  const auto slope = [&](double log_temperature) {
    const auto p = at::softmax(x * std::exp(-log_temperature), 1);
    return ((p * x).sum() - of_target).item<double>();
  };
  double low = -std::log(kMost), high = std::log(kMost);
  if (slope(low) <= 0 || slope(high) >= 0) return 1;  // all are right, or no better than chance
  constexpr int kHalvings = 50;                       // to 1e-14 of it
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (slope(middle) > 0 ? low : high) = middle;  // too steep a softmax wants a higher temperature
  }
  return std::exp((low + high) / 2);
}

}  // namespace

SingleLabelClassification::SingleLabelClassification(LabelMap labels,
                                                     std::string_view metric,
                                                     std::string on_unknown_label,
                                                     bool calibrate)
    : Classification(std::move(labels), {single_label_metrics(), /*num_shown=*/2, metric}, std::move(on_unknown_label)),
      calibrate_(calibrate) {}

std::string SingleLabelClassification::summary() const { return fmt::format("{} classes", labels().size()); }

at::Tensor SingleLabelClassification::targets(const LabeledRows& rows) const {
  return label_ids(rows, labels(), on_unknown_label());
}

at::Tensor SingleLabelClassification::label_counts(const at::Tensor& targets) const {
  return at::bincount(targets, /*weights=*/{}, labels().size());
}

at::Tensor SingleLabelClassification::balanced_weights(const at::Tensor& counts, int64_t num_texts) const {
  const auto present = counts.count_nonzero().item<int64_t>();
  return static_cast<double>(num_texts) / (counts.to(at::kDouble) * present);
}

at::Tensor SingleLabelClassification::loss(const at::Tensor& outputs, const PackedBatch& batch) const {
  return softmax_loss(outputs, batch.targets, loss_options(), class_weights());
}

Evaluation SingleLabelClassification::evaluate(const at::Tensor& outputs, const at::Tensor& targets) const {
  Evaluation evaluation = metric_choice().begin(at::cross_entropy_loss(outputs, targets).item<double>());
  if (!std::isfinite(evaluation.loss)) return evaluation;
  const auto predicted = outputs.argmax(1).contiguous();
  auto report = classification_report(elements<int64_t>(targets), elements<int64_t>(predicted), labels().names());
  const auto probabilities = at::softmax(outputs, 1, at::kDouble);
  // Of two labels the second is the positive one, as scikit-learn has it.
  const int64_t first = labels().size() == 2 ? 1 : 0;
  const auto by_label = probabilities.t().slice(0, first).contiguous();
  const auto has_label = at::arange(first, labels().size()).unsqueeze(1).eq(targets);  // [labels, rows]
  const auto [roc_auc, average_precision] =
      ranking_scores(elements<bool>(has_label), elements<double>(by_label), static_cast<size_t>(targets.size(0)),
                     /*absent_labels_count=*/first == 1);
  const auto of_targets = of_labels(probabilities, targets).clamp_min(std::numeric_limits<double>::epsilon());
  evaluation.calibration = calibration_of(probabilities, targets, predicted);
  const double calibration_error = expected_calibration_error(evaluation.calibration);
  const double values[] = {report.accuracy,
                           report.macro_avg.f1,
                           report.weighted_avg.f1,
                           balanced_accuracy(targets, predicted, labels().size()),
                           matthews_corrcoef(targets, predicted, labels().size()),
                           roc_auc,
                           average_precision,
                           -of_targets.log().mean().item<double>(),
                           calibration_error};
  metric_choice().fill(evaluation, values, std::move(report));
  evaluation.majority_baseline =
      static_cast<double>(label_counts(targets).max().item<int64_t>()) / static_cast<double>(targets.size(0));
  return evaluation;
}

std::vector<Mistake> SingleLabelClassification::mistakes(const at::Tensor& outputs, const at::Tensor& targets) const {
  return surest_mistakes(at::softmax(outputs, 1, at::kDouble), targets, outputs.argmax(1), labels().names());
}

Tuning SingleLabelClassification::tune(const at::Tensor& outputs, const at::Tensor& targets) const {
  const double temperature = fit_temperature(outputs, targets);
  if (temperature == 1) return {{}, "no temperature is fitted: all labels of dev are right, or no better than chance"};
  const auto predicted = outputs.argmax(1).contiguous();
  const auto error_at = [&](double t) {
    return expected_calibration_error(calibration_of(at::softmax(outputs.to(at::kDouble) / t, 1), targets, predicted));
  };
  return {{1 / temperature, {}},
          fmt::format("temperature {:.4g} fitted on dev: calibration error {:.4f} there, {:.4f} without it",
                      temperature, error_at(temperature), error_at(1))};
}

std::vector<Prediction> SingleLabelClassification::predictions(const at::Tensor& outputs,
                                                               const WordsOfTexts&,
                                                               const PredictionOptions& options) const {
  const auto scores = at::softmax(outputs, 1, at::kDouble);
  const auto best = scores.argmax(1);
  const auto labels_of_row = static_cast<size_t>(labels().size());
  std::vector<Prediction> predictions;
  for (int64_t row = 0; row < scores.size(0); ++row) {
    const auto of_row = elements<double>(scores).subspan(static_cast<size_t>(row) * labels_of_row, labels_of_row);
    const auto id = best.const_data_ptr<int64_t>()[row];
    const double score = of_row[static_cast<size_t>(id)];
    Prediction prediction;
    if (score < options.min_score) {
      prediction.emplace_back("label", std::monostate());
    } else {
      prediction.emplace_back("label", labels().name(id));
    }
    prediction.emplace_back("score", score);
    prediction.emplace_back("scores", scores_by_name(of_row, options));
    predictions.push_back(std::move(prediction));
  }
  return predictions;
}

}  // namespace mezzo::text
