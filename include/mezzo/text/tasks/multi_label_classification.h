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
  /// @param thresholds  from 0 to 1, one a label: of which probability on a text has it; empty: 0.5 of all.
  explicit MultiLabelClassification(LabelMap labels,
                                    std::string_view metric = "",
                                    std::string on_unknown_label = "",
                                    std::vector<double> thresholds = {});

  std::string_view problem_type() const override { return kProblemType; }
  std::string summary() const override;
  void describe(ModelConfig& config) const override;

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

  /// Each label's threshold, for the most F1.
  bool is_tunable() const override { return true; }
  std::shared_ptr<const Task> tuned(const at::Tensor& outputs, const at::Tensor& targets) const override;
  std::string tuning() const override;

  /// The labels whose probability reaches their threshold, and the probabilities of all.
  /// @throws c10::ValueError  for a `min_score`: thresholds say what is too low.
  std::vector<Prediction> predictions(const at::Tensor& outputs,
                                      const WordsOfTexts& words,
                                      const PredictionOptions& options) const override;

 private:
  std::shared_ptr<Classification> clone() const override { return std::make_shared<MultiLabelClassification>(*this); }
  at::Tensor label_counts(const at::Tensor& targets) const override;
  at::Tensor balanced_weights(const at::Tensor& counts, int64_t num_texts) const override;
  at::Tensor thresholds() const;

  std::vector<double> thresholds_;
};

}  // namespace mezzo::text
