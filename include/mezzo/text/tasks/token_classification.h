#pragma once

#include "mezzo/cpp20.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/tasks/classification.h"

namespace mezzo::text {

/// A label for each word, which the outputs of its first token tell: softmax and cross entropy. Where labels are O, and
/// B-, I-, E- or S- before a type, they tell entities.
class TokenClassification : public Classification {
 public:
  static constexpr std::string_view kProblemType = "token_classification";

  /// @param labels  an output of the model each.
  /// @param metric  that decides which model is the best: F1 of entities, or accuracy, where it is empty.
  /// @param on_unknown_label  see TaskOptions
  explicit TokenClassification(LabelMap labels, std::string_view metric = "", std::string on_unknown_label = "");

  std::string_view problem_type() const override { return kProblemType; }
  Head head() const override { return {labels().size(), RowsPer::kToken}; }
  std::string summary() const override;

  at::Tensor targets(const LabeledRows& rows) const override;
  /// Also that they teach no entities, where that hangs on some labels.
  std::vector<std::string> untrained(const at::Tensor& targets, const std::string& why) const override;

  /// As of single labels, of words.
  /// @param outputs  [T, labels]
  at::Tensor loss(const at::Tensor& outputs, const PackedBatch& batch) const override;

  /// F1 of entities and accuracy of words; among the details precision and recall of entities, and their F1 as means
  /// over the types. Of labels that tell no entities accuracy and macro F1 of words, and weighted F1. Words that
  /// `max_length` cuts off, or that have no token, do not count.
  /// @see f1_score and classification_report of seqeval (Python); of sklearn.metrics
  const std::vector<MetricInfo>& metrics() const override { return Classification::metrics(); }
  /// @param outputs  [N, L, labels]
  /// @param targets  [N, L] int32, as set_targets() makes them.
  Evaluation evaluate(const at::Tensor& outputs, const at::Tensor& targets) const override;
  std::vector<Mistake> mistakes(const at::Tensor& outputs, const at::Tensor& targets) const override;

  /// Words and their labels, null for those that were cut off or have no token; and the entities.
  /// @throws c10::ValueError  for options: they are of labels of texts.
  std::vector<Prediction> predictions(const at::Tensor& outputs,
                                      const WordsOfTexts& words,
                                      const PredictionOptions& options) const override;

 private:
  std::shared_ptr<Classification> clone() const override { return std::make_shared<TokenClassification>(*this); }
  at::Tensor label_counts(const at::Tensor& targets) const override;
  at::Tensor balanced_weights(const at::Tensor& counts, int64_t num_texts) const override;

  bool has_entities_;
};

}  // namespace mezzo::text
