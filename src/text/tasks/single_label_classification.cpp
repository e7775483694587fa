#include "mezzo/text/tasks/single_label_classification.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/softmax.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "amp/cross_entropy.h"
#include "mezzo/text/tasks/scores.h"
#include "text/data/data_check.h"
#include "text/tasks/elements.h"

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
  scores.calibration_error = expected_calibration_error(confidences, {is_right.get(), rows});
  return scores;
}

}  // namespace

SingleLabelClassification::SingleLabelClassification(LabelMap labels,
                                                     std::string_view metric,
                                                     std::string on_unknown_label)
    : labels_(std::move(labels)),
      on_unknown_label_(std::move(on_unknown_label)),
      metrics_(single_label_metrics(), /*num_shown=*/2, metric) {}

std::string SingleLabelClassification::summary() const { return fmt::format("{} classes", labels_.size()); }

at::Tensor SingleLabelClassification::targets(const LabeledRows& rows) const {
  return label_ids(rows, labels_, on_unknown_label_);
}

std::vector<std::string> SingleLabelClassification::odd_rows(const LabeledRows& rows) const {
  return text::odd_rows(rows, labels_);
}

std::vector<std::string> SingleLabelClassification::untrained(const at::Tensor& targets, const std::string& why) const {
  std::vector<bool> has_text(labels_.size());
  for (const int64_t id : ids(targets)) has_text[id] = true;
  return untrained_labels(has_text, labels_, why);
}

at::Tensor SingleLabelClassification::loss(const at::Tensor& outputs, const PackedBatch& batch) const {
  return cross_entropy_of_labels(outputs, batch.targets, at::Reduction::Sum);
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
  auto report = classification_report(is, was_predicted, labels_.names());
  const auto probabilities = at::softmax(outputs, 1, at::kDouble);
  const auto by_label = probabilities.t().contiguous();
  const auto has_label = at::arange(labels_.size()).unsqueeze(1).eq(targets);  // [labels, rows]
  const auto [roc_auc, average_precision] =
      ranking_scores(elements<bool>(has_label), elements<double>(by_label), is.size());
  const auto [log_loss, calibration_error] = scores_of(probabilities, is, was_predicted);
  const double values[] = {report.accuracy,
                           report.macro_avg.f1,
                           report.weighted_avg.f1,
                           balanced_accuracy(is, was_predicted, labels_.size()),
                           matthews_corrcoef(is, was_predicted, labels_.size()),
                           roc_auc,
                           average_precision,
                           log_loss,
                           calibration_error};
  metrics_.fill(evaluation, values);
  evaluation.report = report.to_text();
  evaluation.confusion_matrix = std::move(report.confusion);
  return evaluation;
}

std::vector<Prediction> SingleLabelClassification::predictions(const at::Tensor& outputs) const {
  const auto scores = at::softmax(outputs, 1);
  const auto best = scores.argmax(1);
  const auto score = scores.accessor<float, 2>();
  std::vector<Prediction> predictions;
  for (int64_t row = 0; row < scores.size(0); ++row) {
    const auto id = best.const_data_ptr<int64_t>()[row];
    std::vector<std::pair<std::string, double>> by_name;
    for (int64_t label = 0; label < labels_.size(); ++label) {
      by_name.emplace_back(labels_.name(label), score[row][label]);
    }
    Prediction prediction{{"label", labels_.name(id)}, {"score", double{score[row][id]}}};
    prediction.emplace_back("scores", std::move(by_name));
    predictions.push_back(std::move(prediction));
  }
  return predictions;
}

}  // namespace mezzo::text
