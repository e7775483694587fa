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
#include <span>
#include <utility>

#include "mezzo/text/tasks/scores.h"
#include "text/tasks/elements.h"
#include "text/tasks/softmax_loss.h"
#include "text/tasks/surest.h"

namespace mezzo::text {
namespace {

std::span<const int64_t> ids(const at::Tensor& tensor) { return elements<int64_t>(tensor); }

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

/// What the probabilities of labels come to.
struct ProbabilityScores {
  double log_loss = 0, calibration_error = 0;
  std::vector<CalibrationBin> calibration;
};

/// @param probabilities  [rows, labels], float64.
ProbabilityScores scores_of(const at::Tensor& probabilities,
                            std::span<const int64_t> is,
                            std::span<const int64_t> predicted) {
  const auto rows = static_cast<size_t>(probabilities.size(0));
  const auto probability = probabilities.accessor<double, 2>();
  ProbabilityScores scores;
  std::vector<double> confidences(rows);
  const std::unique_ptr<bool[]> is_right(new bool[rows]);
  for (size_t i = 0; i < rows; ++i) {
    const auto row = static_cast<int64_t>(i);
    confidences[i] = probability[row][predicted[i]];
    is_right[i] = is[i] == predicted[i];
    scores.log_loss -= std::log(std::max(probability[row][is[i]], std::numeric_limits<double>::epsilon()));
  }
  scores.log_loss /= static_cast<double>(rows);
  scores.calibration = calibration_bins(confidences, {is_right.get(), rows});
  scores.calibration_error = expected_calibration_error(scores.calibration);
  return scores;
}

/// Log loss is convex in 1 / temperature, and its slope rises through 0 at the least.
double fit_temperature(const at::Tensor& outputs, const at::Tensor& targets) {
  constexpr double kMost = 100;
  const auto x = outputs.to(at::kDouble);
  const auto of_target = x.gather(1, targets.unsqueeze(1)).sum();
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

SingleLabelClassification::SingleLabelClassification(
    LabelMap labels, std::string_view metric, std::string on_unknown_label, double temperature, bool calibrate)
    : Classification(std::move(labels), {single_label_metrics(), /*num_shown=*/2, metric}, std::move(on_unknown_label)),
      temperature_(temperature),
      calibrate_(calibrate) {}

std::string SingleLabelClassification::summary() const { return fmt::format("{} classes", labels().size()); }

void SingleLabelClassification::describe(ModelConfig& config) const {
  Task::describe(config);
  config.softmax_temperature = temperature_;
}

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
  Evaluation evaluation;
  evaluation.loss = at::cross_entropy_loss(outputs, targets).item<double>();
  if (!std::isfinite(evaluation.loss)) {
    evaluation.metrics.assign(metrics().size(), std::numeric_limits<double>::quiet_NaN());
    return evaluation;
  }
  const auto predicted = outputs.argmax(1).contiguous();
  const auto is = ids(targets), was_predicted = ids(predicted);
  auto report = classification_report(is, was_predicted, labels().names());
  const auto probabilities = this->probabilities(outputs);
  // Of two labels the second is the positive one, as scikit-learn has it.
  const int64_t first = labels().size() == 2 ? 1 : 0;
  const auto by_label = probabilities.t().slice(0, first).contiguous();
  const auto has_label = at::arange(first, labels().size()).unsqueeze(1).eq(targets);  // [labels, rows]
  const auto [roc_auc, average_precision] = ranking_scores(elements<bool>(has_label), elements<double>(by_label),
                                                           is.size(), /*absent_labels_count=*/first == 1);
  auto [log_loss, calibration_error, calibration] = scores_of(probabilities, is, was_predicted);
  const double values[] = {report.accuracy,
                           report.macro_avg.f1,
                           report.weighted_avg.f1,
                           balanced_accuracy(is, was_predicted, labels().size()),
                           matthews_corrcoef(is, was_predicted, labels().size()),
                           roc_auc,
                           average_precision,
                           log_loss,
                           calibration_error};
  metric_choice().fill(evaluation, values);
  evaluation.report = report.to_text();
  if (temperature_ != 1) {
    const double before = scores_of(at::softmax(outputs, 1, at::kDouble), is, was_predicted).calibration_error;
    evaluation.details.emplace_back("expected_calibration_error_before", before);
    evaluation.report += fmt::format("\nexpected calibration error {:.4f}; without the temperature of {:.4g}: {:.4f}\n",
                                     calibration_error, temperature_, before);
  }
  evaluation.never_predicted = report.never_predicted();
  evaluation.majority_baseline =
      static_cast<double>(label_counts(targets).max().item<int64_t>()) / static_cast<double>(is.size());
  evaluation.confusion_matrix = std::move(report.confusion);
  evaluation.calibration = std::move(calibration);
  return evaluation;
}

std::vector<Mistake> SingleLabelClassification::mistakes(const at::Tensor& outputs, const at::Tensor& targets) const {
  const auto predicted = outputs.argmax(1).contiguous();
  return surest_mistakes(probabilities(outputs), ids(targets), ids(predicted), labels().names());
}

std::shared_ptr<const Task> SingleLabelClassification::tuned(const at::Tensor& outputs,
                                                             const at::Tensor& targets) const {
  auto task = std::make_shared<SingleLabelClassification>(*this);
  task->temperature_ = fit_temperature(outputs, targets);
  return task;
}

std::string SingleLabelClassification::tuning() const {
  return temperature_ == 1 ? "no temperature is fitted: dev is told apart wholly, or no better than by chance"
                           : fmt::format("temperature {:.4g} fitted on dev", temperature_);
}

std::vector<Prediction> SingleLabelClassification::predictions(const at::Tensor& outputs,
                                                               const WordsOfTexts&,
                                                               const PredictionOptions& options) const {
  const auto scores = probabilities(outputs);
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

/// [rows, labels] float64
at::Tensor SingleLabelClassification::probabilities(const at::Tensor& outputs) const {
  return at::softmax(outputs.to(at::kDouble) / temperature_, 1);
}

}  // namespace mezzo::text
