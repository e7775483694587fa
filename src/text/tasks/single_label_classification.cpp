#include "mezzo/text/tasks/single_label_classification.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/softmax.h>
#include <fmt/format.h>

#include <cmath>
#include <span>
#include <utility>

#include "amp/cross_entropy.h"
#include "text/data/data_check.h"

namespace mezzo::text {
namespace {

std::span<const int64_t> ids(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), static_cast<size_t>(tensor.numel())};
}

}  // namespace

std::string SingleLabelClassification::summary() const { return fmt::format("{} classes", labels_.size()); }

at::Tensor SingleLabelClassification::targets(const LabeledRows& rows) const { return label_ids(rows, labels_); }

std::vector<std::string> SingleLabelClassification::odd_rows(const LabeledRows& rows) const {
  return text::odd_rows(rows, labels_);
}

std::vector<std::string> SingleLabelClassification::untrained(const at::Tensor& targets, const std::string& why) const {
  return untrained_labels(ids(targets), labels_, why);
}

at::Tensor SingleLabelClassification::loss(const at::Tensor& outputs, const PackedBatch& batch) const {
  return cross_entropy_of_labels(outputs, batch.targets, at::Reduction::Sum);
}

const std::vector<MetricInfo>& SingleLabelClassification::metrics() const {
  static const std::vector<MetricInfo> kMetrics = {{"accuracy", "accuracy"}, {"macro_f1", "macro F1"}};
  return kMetrics;
}

Evaluation SingleLabelClassification::evaluate(const at::Tensor& outputs, const at::Tensor& targets) const {
  Evaluation evaluation;
  evaluation.loss = at::cross_entropy_loss(outputs, targets).item<double>();
  if (!std::isfinite(evaluation.loss)) {
    evaluation.metrics.assign(metrics().size(), std::numeric_limits<double>::quiet_NaN());
    return evaluation;
  }
  const auto predicted = outputs.argmax(1).contiguous();
  auto report = classification_report(ids(targets), ids(predicted), labels_.names());
  evaluation.metrics = {report.accuracy, report.macro_avg.f1};
  evaluation.details = {{"weighted_f1", report.weighted_avg.f1}};
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
