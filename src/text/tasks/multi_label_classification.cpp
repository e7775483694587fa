#include "mezzo/text/tasks/multi_label_classification.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "mezzo/text/tasks/scores.h"
#include "text/tasks/elements.h"
#include "text/tasks/surest.h"

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

/// The names of a row's labels, with | between them.
std::string listed(const at::Tensor& has_label, int64_t row, const std::vector<std::string>& names) {
  std::string list;
  for (size_t label = 0; label < names.size(); ++label) {
    if (has_label.accessor<bool, 2>()[row][static_cast<int64_t>(label)])
      list += (list.empty() ? "" : "|") + names[label];
  }
  return list;
}

}  // namespace

MultiLabelClassification::MultiLabelClassification(LabelMap labels,
                                                   std::string_view metric,
                                                   std::string on_unknown_label)
    : Classification(std::move(labels), {multi_label_metrics(), /*num_shown=*/2, metric}, std::move(on_unknown_label)) {
}

std::string MultiLabelClassification::summary() const {
  return fmt::format("{} labels, any number a text", labels().size());
}

at::Tensor MultiLabelClassification::targets(const LabeledRows& rows) const {
  return label_flags(rows, labels(), on_unknown_label());
}

at::Tensor MultiLabelClassification::label_counts(const at::Tensor& targets) const { return targets.ne(0).sum(0); }

at::Tensor MultiLabelClassification::balanced_weights(const at::Tensor& counts, int64_t num_texts) const {
  return (num_texts - counts).to(at::kDouble) / counts;
}

at::Tensor MultiLabelClassification::loss(const at::Tensor& outputs, const PackedBatch& batch) const {
  const LossOptions& options = loss_options();
  const auto x = outputs.to(at::kFloat);
  auto targets = batch.targets;
  const std::optional<at::Tensor> weights = class_weights().defined() ? std::optional(class_weights()) : std::nullopt;
  if (options.focal_gamma > 0) {
    const auto right = (2 * targets - 1) * x;  // -softplus(-right) is the logarithm of the right answer's probability
    auto losses = at::softplus(-right) * at::exp(-options.focal_gamma * at::softplus(right));
    if (weights) losses = losses * (targets * (*weights - 1) + 1);
    return losses.mean(1).sum();
  }
  if (options.label_smoothing > 0) targets = targets * (1 - options.label_smoothing) + options.label_smoothing / 2;
  return at::binary_cross_entropy_with_logits(x, targets, /*weight=*/{}, weights, at::Reduction::None).mean(1).sum();
}

Evaluation MultiLabelClassification::evaluate(const at::Tensor& outputs, const at::Tensor& targets) const {
  Evaluation evaluation = metric_choice().begin(at::binary_cross_entropy_with_logits(outputs, targets).item<double>());
  if (!std::isfinite(evaluation.loss)) return evaluation;
  const auto probabilities = probabilities_of(outputs);
  const auto is = targets.ne(0).contiguous(), predicted = probabilities.ge(0.5).contiguous();
  const auto report = classification_report(elements<bool>(is), elements<bool>(predicted), labels().names());
  const auto by_label = probabilities.t().contiguous(), has_label = is.t().contiguous();
  const auto [roc_auc, average_precision] =
      ranking_scores(elements<bool>(has_label), elements<double>(by_label), static_cast<size_t>(outputs.size(0)),
                     /*absent_labels_count=*/true);
  const double values[] = {report.several->micro_avg.f1,
                           report.macro_avg.f1,
                           report.weighted_avg.f1,
                           report.several->samples_avg->f1,
                           report.accuracy,
                           is.ne(predicted).to(at::kDouble).mean().item<double>(),
                           roc_auc,
                           average_precision};
  metric_choice().fill(evaluation, values, report);
  return evaluation;
}

std::vector<Mistake> MultiLabelClassification::mistakes(const at::Tensor& outputs, const at::Tensor& targets) const {
  const auto probabilities = probabilities_of(outputs);
  const auto is = targets.ne(0), predicted = probabilities.ge(0.5), is_wrong = is.ne(predicted);
  const auto sureness = at::where(predicted, probabilities, 1 - probabilities).mul(is_wrong).amax(1);
  std::vector<Mistake> mistakes;
  for (const int64_t row : surest(is_wrong.any(1), sureness)) {
    mistakes.push_back(
        {row, listed(is, row, label_names()), listed(predicted, row, label_names()), sureness[row].item<double>()});
  }
  return mistakes;
}

Tuning MultiLabelClassification::tune(const at::Tensor& outputs, const at::Tensor& targets) const {
  const auto by_label = probabilities_of(outputs).t().contiguous(), has_label = targets.ne(0).t().contiguous();
  const auto rows = static_cast<size_t>(outputs.size(0));
  std::vector<double> thresholds;
  for (size_t begin = 0; begin < static_cast<size_t>(by_label.numel()); begin += rows) {
    thresholds.push_back(best_f1_threshold(elements<bool>(has_label).subspan(begin, rows),
                                           elements<double>(by_label).subspan(begin, rows)));
  }
  constexpr double kLeast = 1e-12;
  const auto [least, most] = std::ranges::minmax(thresholds);
  return {{1, -at::logit(at::tensor(thresholds, at::kDouble), kLeast)},
          fmt::format("thresholds from {:.2g} to {:.2g} fitted on dev, so scores of dev are optimistic", least, most)};
}

std::vector<Prediction> MultiLabelClassification::predictions(const at::Tensor& outputs,
                                                              const WordsOfTexts&,
                                                              const PredictionOptions& options) const {
  TORCH_CHECK_VALUE(options.min_score == 0,
                    "--min-score is for single labels; of several, those with a score of at least 0.5 are given");
  const auto probabilities = probabilities_of(outputs);
  const auto predicted = probabilities.ge(0.5);
  const auto num_labels = static_cast<size_t>(labels().size());
  const auto is_predicted = predicted.accessor<bool, 2>();
  std::vector<Prediction> predictions;
  for (int64_t row = 0; row < outputs.size(0); ++row) {
    std::vector<std::string> names;
    for (int64_t label = 0; label < labels().size(); ++label) {
      if (is_predicted[row][label]) names.push_back(labels().name(label));
    }
    predictions.push_back(
        {{"labels", std::move(names)},
         {"scores",
          scores_by_name(elements<double>(probabilities).subspan(static_cast<size_t>(row) * num_labels, num_labels),
                         options)}});
  }
  return predictions;
}

}  // namespace mezzo::text
