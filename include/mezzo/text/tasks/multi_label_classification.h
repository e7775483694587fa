#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/tasks/task.h"

namespace mezzo::text {

/// Any number of labels a text, none included: a sigmoid for each output and binary cross entropy. Targets are
/// [N, labels] float32 of ones and zeros.
class MultiLabelClassification : public Task {
 public:
  static constexpr std::string_view kProblemType = "multi_label_classification";

  /// @param labels  an output of the model each.
  /// @param metric  that decides which model is the best: micro F1, where it is empty.
  /// @param on_unknown_label  see TaskOptions
  /// @param thresholds  from 0 to 1, one a label: of which probability on a text has it; empty: 0.5 of all.
  explicit MultiLabelClassification(LabelMap labels,
                                    std::string_view metric = "",
                                    std::string on_unknown_label = "",
                                    std::vector<double> thresholds = {});

  std::string_view problem_type() const override { return kProblemType; }
  const std::vector<std::string>& label_names() const override { return labels_.names(); }
  Head head() const override { return {labels_.size(), RowsPer::kText}; }
  std::string summary() const override;
  void describe(ModelConfig& config) const override;

  at::Tensor targets(const LabeledRows& rows) const override;
  std::vector<std::string> odd_rows(const LabeledRows& rows) const override;
  std::vector<std::string> untrained(const at::Tensor& targets, const std::string& why) const override;

  /// The mean over the labels, as transformers takes it, of each text.
  /// @param outputs  [B, labels]
  at::Tensor loss(const at::Tensor& outputs, const PackedBatch& batch) const override;

  /// Micro and macro F1, as scikit-learn counts them; among the details weighted F1, F1 of samples, accuracy (the share
  /// of texts of which no label is wrong), Hamming loss, and area under the ROC curve and average precision, means over
  /// the labels that have rows and leave some.
  const std::vector<MetricInfo>& metrics() const override { return metrics_.shown(); }
  Evaluation evaluate(const at::Tensor& outputs, const at::Tensor& targets) const override;

  /// Each label's threshold, for the most F1.
  bool is_tunable() const override { return true; }
  std::shared_ptr<const Task> tuned(const at::Tensor& outputs, const at::Tensor& targets) const override;

  /// The labels whose probability reaches their threshold, and the probabilities of all.
  std::vector<Prediction> predictions(const at::Tensor& outputs) const override;

 private:
  at::Tensor thresholds() const;

  LabelMap labels_;
  std::string on_unknown_label_;
  std::vector<double> thresholds_;
  MetricChoice metrics_;
};

}  // namespace mezzo::text
