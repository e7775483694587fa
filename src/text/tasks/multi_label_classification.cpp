#include "mezzo/text/tasks/multi_label_classification.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "mezzo/text/tasks/scores.h"
#include "text/data/data_check.h"
#include "text/tasks/elements.h"

namespace mezzo::text {
namespace {

/// In the order of what evaluate() measures.
std::vector<MetricInfo> multi_label_metrics() {
  return {
      {"micro_f1", "micro F1"},       {"macro_f1", "macro F1"},
      {"weighted_f1", "weighted F1"}, {"samples_f1", "F1 of samples"},
      {"accuracy", "accuracy"},       {"hamming_loss", "Hamming loss", /*is_share=*/true, /*greater_is_better=*/false},
      {"roc_auc", "ROC AUC"},         {"average_precision", "average precision"}};
}

/// [rows, labels] float64
at::Tensor probabilities_of(const at::Tensor& outputs) { return at::sigmoid(outputs.to(at::kDouble)); }

}  // namespace

MultiLabelClassification::MultiLabelClassification(LabelMap labels,
                                                   std::string_view metric,
                                                   std::string on_unknown_label,
                                                   std::vector<double> thresholds)
    : labels_(std::move(labels)),
      on_unknown_label_(std::move(on_unknown_label)),
      thresholds_(std::move(thresholds)),
      metrics_(multi_label_metrics(), /*num_shown=*/2, metric) {
  TORCH_CHECK_VALUE(thresholds_.empty() || std::ssize(thresholds_) == labels_.size(),
                    "MultiLabelClassification: ", thresholds_.size(), " thresholds for ", labels_.size(), " labels");
}

std::string MultiLabelClassification::summary() const {
  return fmt::format("{} labels, any number a text", labels_.size());
}

void MultiLabelClassification::describe(ModelConfig& config) const {
  Task::describe(config);
  config.label_thresholds = thresholds_;
}

at::Tensor MultiLabelClassification::targets(const LabeledRows& rows) const {
  return label_flags(rows, labels_, on_unknown_label_);
}

std::vector<std::string> MultiLabelClassification::odd_rows(const LabeledRows& rows) const {
  return text::odd_rows(rows, labels_);
}

std::vector<std::string> MultiLabelClassification::untrained(const at::Tensor& targets, const std::string& why) const {
  const auto found = targets.ne(0).any(0).contiguous();
  const auto flags = elements<bool>(found);
  return untrained_labels({flags.begin(), flags.end()}, labels_, why);
}

at::Tensor MultiLabelClassification::loss(const at::Tensor& outputs, const PackedBatch& batch) const {
  return at::binary_cross_entropy_with_logits(outputs.to(at::kFloat), batch.targets, /*weight=*/{}, /*pos_weight=*/{},
                                              at::Reduction::None)
      .mean(1)
      .sum();
}

Evaluation MultiLabelClassification::evaluate(const at::Tensor& outputs, const at::Tensor& targets) const {
  Evaluation evaluation;
  evaluation.loss = at::binary_cross_entropy_with_logits(outputs, targets).item<double>();
  if (!std::isfinite(evaluation.loss)) {
    evaluation.metrics.assign(metrics().size(), std::numeric_limits<double>::quiet_NaN());
    return evaluation;
  }
  const auto probabilities = probabilities_of(outputs);
  const auto is = targets.ne(0).contiguous(), predicted = probabilities.ge(thresholds()).contiguous();
  const auto report = classification_report(elements<bool>(is), elements<bool>(predicted), labels_.names());
  const auto by_label = probabilities.t().contiguous(), has_label = is.t().contiguous();
  const auto [roc_auc, average_precision] =
      ranking_scores(elements<bool>(has_label), elements<double>(by_label), static_cast<size_t>(outputs.size(0)));
  const double values[] = {report.several->micro_avg.f1,
                           report.macro_avg.f1,
                           report.weighted_avg.f1,
                           report.several->samples_avg.f1,
                           report.accuracy,
                           is.ne(predicted).to(at::kDouble).mean().item<double>(),
                           roc_auc,
                           average_precision};
  metrics_.fill(evaluation, values);
  evaluation.report = report.to_text();
  return evaluation;
}

std::shared_ptr<const Task> MultiLabelClassification::tuned(const at::Tensor& outputs,
                                                            const at::Tensor& targets) const {
  const auto by_label = probabilities_of(outputs).t().contiguous(), has_label = targets.ne(0).t().contiguous();
  const auto rows = static_cast<size_t>(outputs.size(0));
  auto task = std::make_shared<MultiLabelClassification>(*this);
  task->thresholds_.clear();
  for (size_t begin = 0; begin < static_cast<size_t>(by_label.numel()); begin += rows) {
    task->thresholds_.push_back(best_f1_threshold(elements<bool>(has_label).subspan(begin, rows),
                                                  elements<double>(by_label).subspan(begin, rows)));
  }
  return task;
}

std::vector<Prediction> MultiLabelClassification::predictions(const at::Tensor& outputs) const {
  const auto probabilities = probabilities_of(outputs);
  const auto predicted = probabilities.ge(thresholds());
  const auto probability = probabilities.accessor<double, 2>();
  const auto is_predicted = predicted.accessor<bool, 2>();
  std::vector<Prediction> predictions;
  for (int64_t row = 0; row < outputs.size(0); ++row) {
    std::vector<std::string> names;
    std::vector<std::pair<std::string, double>> by_name;
    for (int64_t label = 0; label < labels_.size(); ++label) {
      if (is_predicted[row][label]) names.push_back(labels_.name(label));
      by_name.emplace_back(labels_.name(label), probability[row][label]);
    }
    predictions.push_back({{"labels", std::move(names)}, {"scores", std::move(by_name)}});
  }
  return predictions;
}

/// [labels] float64
at::Tensor MultiLabelClassification::thresholds() const {
  return thresholds_.empty() ? at::full({labels_.size()}, 0.5, at::kDouble) : at::tensor(thresholds_, at::kDouble);
}

}  // namespace mezzo::text
