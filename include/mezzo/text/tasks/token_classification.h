#pragma once

#include "mezzo/cpp20.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/tasks/classification.h"

namespace mezzo::text {

/// A label for each word, from the outputs of its first token: softmax and cross entropy. Labels O,
/// and B-, I-, E- or S- before a type, form entities.
class TokenClassification : public Classification {
 public:
  /// Its name in config.json.
  static constexpr std::string_view kProblemType = "token_classification";

  /// @param labels  one output of the model each
  /// @param metric  decides which model is the best; empty: F1 of entities, or accuracy
  /// @param on_unknown_label  see TaskOptions
  explicit TokenClassification(LabelMap labels, std::string_view metric = "", std::string on_unknown_label = "");

  std::string_view problem_type() const override { return kProblemType; }
  Head head() const override { return {labels().size(), RowsPer::kToken}; }
  std::string summary() const override;

  at::Tensor targets(const LabeledRows& rows) const override;
  /// Also reports if the missing labels prevent entities.
  std::vector<std::string> untrained(const at::Tensor& targets, const std::string& why) const override;

  /// As for single labels, over words.
  /// @param outputs  [T, labels]
  at::Tensor loss(const at::Tensor& outputs, const PackedBatch& batch) const override;

  /// F1 of entities and accuracy of words. The details are precision and recall of entities, and
  /// the macro and weighted F1 over their types. For labels without entities: accuracy, macro F1
  /// and weighted F1 of words. Truncated words, and words without a token, do not count.
  /// @see f1_score and classification_report of seqeval and of sklearn.metrics (Python)
  const std::vector<MetricInfo>& metrics() const override { return Classification::metrics(); }
  /// @param outputs  [N, L, labels]
  /// @param targets  [N, L] int32, from set_targets()
  Evaluation evaluate(const at::Tensor& outputs, const at::Tensor& targets) const override;
  std::vector<Mistake> mistakes(const at::Tensor& outputs, const at::Tensor& targets) const override;

  /// Words and their labels, and the entities. The label of a truncated word, or a word without a
  /// token, is null.
  /// @throws c10::ValueError  for options, which apply to labels of texts
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
