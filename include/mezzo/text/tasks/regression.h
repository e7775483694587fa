#pragma once

#include "mezzo/cpp20.h"

#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/tasks/task.h"

namespace mezzo::text {

/// One number per text, from the model's single output: mean squared error. Targets are [N]
/// float32.
class Regression : public Task {
 public:
  /// Its name in config.json.
  static constexpr std::string_view kProblemType = "regression";

  /// @param metric  decides which model is the best; empty: mean squared error
  explicit Regression(std::string_view metric = "");

  std::string_view problem_type() const override { return kProblemType; }
  /// The name of the single output: transformers' default.
  const std::vector<std::string>& label_names() const override { return label_names_; }
  Head head() const override { return {1, RowsPer::kText}; }
  std::string summary() const override { return "one number a text"; }

  at::Tensor targets(const LabeledRows& rows) const override;
  std::vector<std::string> odd_rows(const LabeledRows& rows) const override;
  std::vector<std::string> untrained(const at::Tensor&, const std::string&) const override { return {}; }

  /// @param outputs  [B, 1]
  at::Tensor loss(const at::Tensor& outputs, const PackedBatch& batch) const override;
  /// @throws c10::ValueError  for any option: regression has only this loss
  std::shared_ptr<const Task> with_loss(const LossOptions& options,
                                        const at::Tensor& targets,
                                        c10::Device device) const override;

  /// Mean squared error and Pearson's correlation; the details are Spearman's correlation.
  /// Correlations are NaN if all targets or all outputs are equal.
  const std::vector<MetricInfo>& metrics() const override { return metrics_.shown(); }
  std::string why_undefined(const at::Tensor& targets) const override;
  Evaluation evaluate(const at::Tensor& outputs, const at::Tensor& targets) const override;

  /// The number, as "value".
  /// @throws c10::ValueError  for options: regression has no scores
  std::vector<Prediction> predictions(const at::Tensor& outputs,
                                      const WordsOfTexts& words,
                                      const PredictionOptions& options) const override;

 private:
  std::vector<std::string> label_names_{"LABEL_0"};
  MetricChoice metrics_;
};

}  // namespace mezzo::text
