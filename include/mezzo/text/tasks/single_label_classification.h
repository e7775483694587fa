#pragma once

#include "mezzo/cpp20.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/tasks/classification.h"

namespace mezzo::text {

/// One label a text: softmax over the outputs and cross entropy. Targets are [N]
/// int64, the ids of the labels.
class SingleLabelClassification : public Classification {
 public:
  static constexpr std::string_view kProblemType = "single_label_classification";

  /// @param labels  an output of the model each.
  /// @param metric  that decides which model is the best: accuracy, where it is empty.
  /// @param on_unknown_label  see TaskOptions
  /// @param calibrate  whether tune() fits a temperature.
  explicit SingleLabelClassification(LabelMap labels,
                                     std::string_view metric = "",
                                     std::string on_unknown_label = "",
                                     bool calibrate = false);

  std::string_view problem_type() const override { return kProblemType; }
  std::string summary() const override;

  at::Tensor targets(const LabeledRows& rows) const override;

  /// A text weighs as much as its label; weights are not divided by their sum, so that a text counts the same in every
  /// batch. "balanced" is the number of texts over the label's and over the number of labels that have some.
  /// @param outputs  [B, labels]
  /// @see torch.nn.functional.cross_entropy (Python) with weight and label_smoothing;
  ///   sklearn.utils.class_weight.compute_class_weight; Lin et al., Focal Loss for Dense Object Detection (2017),
  ///   equation 5, with softmax
  at::Tensor loss(const at::Tensor& outputs, const PackedBatch& batch) const override;

  /// Accuracy and macro F1, as scikit-learn counts them by default; among the details weighted F1, balanced accuracy,
  /// Matthews' correlation, area under the ROC curve, average precision, log loss, expected calibration error.
  /// F1 is averaged over the labels in targets or predictions. Of two labels the second is the positive one. Of more,
  /// the area under the ROC curve is the mean over all labels against the rest, and NaN if a label has no row; average
  /// precision is the mean over the labels that have rows.
  Evaluation evaluate(const at::Tensor& outputs, const at::Tensor& targets) const override;
  std::vector<Mistake> mistakes(const at::Tensor& outputs, const at::Tensor& targets) const override;

  /// Divides the outputs by the temperature of the least log loss, from 1/100 to 100; by 1 if it lies beyond.
  /// @see Guo et al., On Calibration of Modern Neural Networks (2017), section 4.2
  bool is_tunable() const override { return calibrate_; }
  Tuning tune(const at::Tensor& outputs, const at::Tensor& targets) const override;

  /// The most likely label, its score, and the scores of all: softmax of the outputs. Below `min_score` the label is
  /// null.
  std::vector<Prediction> predictions(const at::Tensor& outputs,
                                      const WordsOfTexts& words,
                                      const PredictionOptions& options) const override;

 private:
  std::shared_ptr<Classification> clone() const override { return std::make_shared<SingleLabelClassification>(*this); }
  at::Tensor label_counts(const at::Tensor& targets) const override;
  at::Tensor balanced_weights(const at::Tensor& counts, int64_t num_texts) const override;

  bool calibrate_;
};

}  // namespace mezzo::text
