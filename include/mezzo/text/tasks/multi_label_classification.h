#pragma once

#include "mezzo/cpp20.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/tasks/classification.h"

namespace mezzo::text {

/// Any number of labels per text, also none: a sigmoid for each output and binary cross entropy.
/// Targets are [N, labels] float32 of ones and zeros.
class MultiLabelClassification : public Classification {
 public:
  /// Its name in config.json.
  static constexpr std::string_view kProblemType = "multi_label_classification";

  /// @param labels  one output of the model each
  /// @param metric  decides which model is the best; empty: micro F1
  /// @param on_unknown_label  see TaskOptions
  explicit MultiLabelClassification(LabelMap labels, std::string_view metric = "", std::string on_unknown_label = "");

  std::string_view problem_type() const override { return kProblemType; }
  std::string summary() const override;

  at::Tensor targets(const LabeledRows& rows) const override;

  /// The mean over the labels, as in transformers, for each text. A weight applies to texts with
  /// the label; texts without it have weight 1. "balanced" is the number of texts without the
  /// label, divided by the number with it. Smoothing moves targets towards one half.
  /// @param outputs  [B, labels]
  /// @see torch.nn.BCEWithLogitsLoss (Python) with pos_weight; Lin et al., Focal Loss for Dense
  ///     Object Detection (2017), equation 5
  at::Tensor loss(const at::Tensor& outputs, const PackedBatch& batch) const override;

  /// Micro and macro F1, by scikit-learn's definitions. The details are weighted F1, F1 of samples,
  /// Hamming loss, area under the ROC curve, average precision, and accuracy: the share of texts
  /// without a wrong label.
  ///
  /// Means are over all labels. F1 and average precision of a label without rows are 0. The area
  /// under the ROC curve is NaN if a label has no row, or all rows.
  Evaluation evaluate(const at::Tensor& outputs, const at::Tensor& targets) const override;
  std::vector<Mistake> mistakes(const at::Tensor& outputs, const at::Tensor& targets) const override;

  /// Shifts each label's outputs so that the threshold with the largest F1 becomes the probability
  /// 0.5.
  bool is_tunable() const override { return true; }
  Tuning tune(const at::Tensor& outputs, const at::Tensor& targets) const override;

  /// The labels with a probability of at least 0.5, and the probabilities of all labels.
  /// @throws c10::ValueError  for a `min_score`
  std::vector<Prediction> predictions(const at::Tensor& outputs,
                                      const WordsOfTexts& words,
                                      const PredictionOptions& options) const override;

 private:
  std::shared_ptr<Classification> clone() const override { return std::make_shared<MultiLabelClassification>(*this); }
  at::Tensor label_counts(const at::Tensor& targets) const override;
  at::Tensor balanced_weights(const at::Tensor& counts, int64_t num_texts) const override;
};

}  // namespace mezzo::text
