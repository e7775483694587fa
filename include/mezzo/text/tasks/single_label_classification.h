#pragma once

#include "mezzo/cpp20.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/tasks/classification.h"

namespace mezzo::text {

/// One label per text: softmax over the outputs and cross entropy. Targets are [N] int64, the ids
/// of the labels.
class SingleLabelClassification : public Classification {
 public:
  /// Its name in config.json.
  static constexpr std::string_view kProblemType = "single_label_classification";

  /// @param labels  one output of the model each
  /// @param metric  decides which model is the best; empty: accuracy
  /// @param on_unknown_label  see TaskOptions
  /// @param calibrate  whether tune() fits a temperature
  explicit SingleLabelClassification(LabelMap labels,
                                     std::string_view metric = "",
                                     std::string on_unknown_label = "",
                                     bool calibrate = false);

  std::string_view problem_type() const override { return kProblemType; }
  std::string summary() const override;

  at::Tensor targets(const LabeledRows& rows) const override;

  /// A text has the weight of its label. Weights are not divided by their sum, so a text counts
  /// equally in every batch. "balanced" is the number of texts, divided by the label's number of
  /// texts and by the number of labels with texts.
  /// @param outputs  [B, labels]
  /// @see torch.nn.functional.cross_entropy (Python) with weight and label_smoothing;
  ///     sklearn.utils.class_weight.compute_class_weight; Lin et al., Focal Loss for Dense Object
  ///     Detection (2017), equation 5, with softmax
  at::Tensor loss(const at::Tensor& outputs, const PackedBatch& batch) const override;

  /// Accuracy and macro F1, by scikit-learn's definitions. The details are weighted F1, balanced
  /// accuracy, Matthews' correlation, area under the ROC curve, average precision, log loss and
  /// expected calibration error. F1 is averaged over the labels in targets or predictions.
  ///
  /// Of two labels the second is the positive one. With more labels, the area under the ROC curve
  /// is the mean over all labels against the rest, and NaN if a label has no row. Average precision
  /// is then the mean over the labels with rows.
  Evaluation evaluate(const at::Tensor& outputs, const at::Tensor& targets) const override;
  std::vector<Mistake> mistakes(const at::Tensor& outputs, const at::Tensor& targets) const override;

  /// tune() divides the outputs by the temperature with the least log loss, from 1/100 to 100, or
  /// by 1 if it is outside.
  /// @see Guo et al., On Calibration of Modern Neural Networks (2017), section 4.2
  bool is_tunable() const override { return calibrate_; }
  Tuning tune(const at::Tensor& outputs, const at::Tensor& targets) const override;

  /// The most likely label, its score, and the scores of all labels: softmax of the outputs. The
  /// label is null if its score is below `min_score`.
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
