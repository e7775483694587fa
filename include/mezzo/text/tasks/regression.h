#pragma once

#include "mezzo/cpp20.h"

#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/tasks/task.h"

namespace mezzo::text {

/// A number a text, which the model's one output is to be: mean squared error. Targets are [N] float32.
class Regression : public Task {
 public:
  static constexpr std::string_view kProblemType = "regression";

  /// @param metric  that decides which model is the best: mean squared error, where it is empty.
  explicit Regression(std::string_view metric = "");

  std::string_view problem_type() const override { return kProblemType; }
  /// As transformers names the one output of a model without names.
  const std::vector<std::string>& label_names() const override { return label_names_; }
  Head head() const override { return {1, RowsPer::kText}; }
  std::string summary() const override { return "one number a text"; }

  at::Tensor targets(const LabeledRows& rows) const override;
  std::vector<std::string> odd_rows(const LabeledRows& rows) const override;
  std::vector<std::string> untrained(const at::Tensor&, const std::string&) const override { return {}; }

  /// @param outputs  [B, 1]
  at::Tensor loss(const at::Tensor& outputs, const PackedBatch& batch) const override;
  /// There is no other.
  std::shared_ptr<const Task> with_loss(const LossOptions& options,
                                        const at::Tensor& targets,
                                        c10::Device device) const override;

  /// Mean squared error and Pearson's correlation; among the details Spearman's. Correlations are NaN where targets or
  /// outputs are all the same.
  const std::vector<MetricInfo>& metrics() const override { return metrics_.shown(); }
  std::string why_undefined(const at::Tensor& targets) const override;
  Evaluation evaluate(const at::Tensor& outputs, const at::Tensor& targets) const override;

  /// The number, as "value".
  /// @throws c10::ValueError  for options: there are no scores.
  std::vector<Prediction> predictions(const at::Tensor& outputs,
                                      const WordsOfTexts& words,
                                      const PredictionOptions& options) const override;

 private:
  std::vector<std::string> label_names_{"LABEL_0"};
  MetricChoice metrics_;
};

}  // namespace mezzo::text
