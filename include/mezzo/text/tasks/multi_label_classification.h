#pragma once

#include "mezzo/cpp20.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/tasks/classification.h"

namespace mezzo::text {

/// Any number of labels a text, none included: a sigmoid for each output and binary cross entropy. Targets are
/// [N, labels] float32 of ones and zeros.
class MultiLabelClassification : public Classification {
 public:
  static constexpr std::string_view kProblemType = "multi_label_classification";

  /// @param labels  an output of the model each.
  /// @param metric  that decides which model is the best: micro F1, where it is empty.
  /// @param on_unknown_label  see TaskOptions
  explicit MultiLabelClassification(LabelMap labels, std::string_view metric = "", std::string on_unknown_label = "");

  std::string_view problem_type() const override { return kProblemType; }
  std::string summary() const override;

  at::Tensor targets(const LabeledRows& rows) const override;

  /// The mean over the labels, as transformers takes it, of each text. A weight is that of the texts that have the
  /// label, against 1 of those that do not; "balanced" is how many do not over how many do. Smoothing moves targets
  /// towards one half.
  /// @param outputs  [B, labels]
  /// @see torch.nn.BCEWithLogitsLoss (Python) with pos_weight; Lin et al., Focal Loss for Dense Object Detection
  /// (2017),
  ///   equation 5
  at::Tensor loss(const at::Tensor& outputs, const PackedBatch& batch) const override;

  /// Micro and macro F1, as scikit-learn counts them by default; among the details weighted F1, F1 of samples, accuracy
  /// (the share of texts of which no label is wrong), Hamming loss, area under the ROC curve, average precision.
  /// Means are over all labels: F1 and average precision of a label without rows are 0, and the area under the ROC
  /// curve is NaN if a label has no row, or all.
  Evaluation evaluate(const at::Tensor& outputs, const at::Tensor& targets) const override;
  std::vector<Mistake> mistakes(const at::Tensor& outputs, const at::Tensor& targets) const override;

  /// Shifts each label's outputs by its threshold of the most F1, which becomes the probability 0.5.
  bool is_tunable() const override { return true; }
  Tuning tune(const at::Tensor& outputs, const at::Tensor& targets) const override;

  /// The labels whose probability is at least 0.5, and the probabilities of all.
  /// @throws c10::ValueError  for a `min_score`.
  std::vector<Prediction> predictions(const at::Tensor& outputs,
                                      const WordsOfTexts& words,
                                      const PredictionOptions& options) const override;

 private:
  std::shared_ptr<Classification> clone() const override { return std::make_shared<MultiLabelClassification>(*this); }
  at::Tensor label_counts(const at::Tensor& targets) const override;
  at::Tensor balanced_weights(const at::Tensor& counts, int64_t num_texts) const override;
};

}  // namespace mezzo::text
