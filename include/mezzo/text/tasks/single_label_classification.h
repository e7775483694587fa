#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/tasks/task.h"

namespace mezzo::text {

/// One label a text: softmax over the outputs and cross entropy. Targets are [N]
/// int64, the ids of the labels.
class SingleLabelClassification : public Task {
 public:
  static constexpr std::string_view kProblemType = "single_label_classification";

  /// @param labels  an output of the model each.
  /// @param metric  that decides which model is the best: accuracy, where it is empty.
  /// @param on_unknown_label  see TaskOptions
  explicit SingleLabelClassification(LabelMap labels, std::string_view metric = "", std::string on_unknown_label = "");

  std::string_view problem_type() const override { return kProblemType; }
  const std::vector<std::string>& label_names() const override { return labels_.names(); }
  Head head() const override { return {labels_.size(), RowsPer::kText}; }
  std::string summary() const override;

  at::Tensor targets(const LabeledRows& rows) const override;
  std::vector<std::string> odd_rows(const LabeledRows& rows) const override;
  std::vector<std::string> untrained(const at::Tensor& targets, const std::string& why) const override;

  /// @param outputs  [B, labels]
  at::Tensor loss(const at::Tensor& outputs, const PackedBatch& batch) const override;

  /// Accuracy and macro F1, as scikit-learn counts them; among the details weighted F1, balanced
  /// accuracy, Matthews' correlation, area under the ROC curve and average precision (each the mean over the
  /// labels, one against the rest, that have rows and leave some), log loss, expected calibration error.
  const std::vector<MetricInfo>& metrics() const override { return metrics_.shown(); }
  Evaluation evaluate(const at::Tensor& outputs, const at::Tensor& targets) const override;

  /// The most likely label, its score, and the scores of all: softmax of the outputs.
  std::vector<Prediction> predictions(const at::Tensor& outputs) const override;

 private:
  LabelMap labels_;
  std::string on_unknown_label_;
  MetricChoice metrics_;
};

}  // namespace mezzo::text
