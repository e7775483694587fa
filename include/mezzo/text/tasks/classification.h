#pragma once

#include "mezzo/cpp20.h"

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mezzo/text/tasks/task.h"

namespace mezzo::text {

/// The base of tasks with named labels, with one output of the model per label and the options of
/// the loss.
class Classification : public Task {
 public:
  const std::vector<std::string>& label_names() const override { return labels_.names(); }
  Head head() const override { return {labels_.size(), RowsPer::kText}; }
  std::vector<std::string> odd_rows(const LabeledRows& rows) const override;
  std::vector<std::string> untrained(const at::Tensor& targets, const std::string& why) const override;
  const std::vector<MetricInfo>& metrics() const override { return metrics_.shown(); }
  std::string why_undefined(const at::Tensor& targets) const override;
  std::shared_ptr<const Task> with_loss(const LossOptions& options,
                                        const at::Tensor& targets,
                                        c10::Device device) const override;

 protected:
  /// @param on_unknown_label  see TaskOptions
  Classification(LabelMap labels, MetricChoice metrics, std::string on_unknown_label);

  /// The number of texts, or words, with each label: [labels] int64.
  virtual at::Tensor label_counts(const at::Tensor& targets) const = 0;
  /// The label weights of "balanced", [labels] float64; inf and 0 mean 1.
  virtual at::Tensor balanced_weights(const at::Tensor& counts, int64_t num_texts) const = 0;
  /// A copy, for with_loss().
  virtual std::shared_ptr<Classification> clone() const = 0;

  /// The scores of labels by name, selected by `options`.
  /// @param scores  [labels]
  std::vector<std::pair<std::string, double>> scores_by_name(std::span<const double> scores,
                                                             const PredictionOptions& options) const;

  /// The labels, in the order of the outputs.
  const LabelMap& labels() const { return labels_; }
  /// A sentence for errors: see TaskOptions.
  const std::string& on_unknown_label() const { return on_unknown_label_; }
  /// The metrics of the task.
  const MetricChoice& metric_choice() const { return metrics_; }
  /// The options of the loss.
  const LossOptions& loss_options() const { return loss_options_; }
  /// [labels] float32 on the device of the loss; undefined if all weights are equal.
  const at::Tensor& class_weights() const { return class_weights_; }

 private:
  /// For each label, whether a text, or word, has it.
  std::vector<bool> has_text(const at::Tensor& targets) const;

  LabelMap labels_;
  MetricChoice metrics_;
  std::string on_unknown_label_;
  LossOptions loss_options_;
  at::Tensor class_weights_;
};

}  // namespace mezzo::text
