#include "mezzo/text/tasks/regression.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mse_loss.h>
#include <fmt/format.h>

#include <cmath>

#include "mezzo/text/tasks/scores.h"
#include "text/data/data_check.h"
#include "text/tasks/elements.h"

namespace mezzo::text {
namespace {

/// In the order of what evaluate() measures.
std::vector<MetricInfo> regression_metrics() {
  return {{"mean_squared_error", "mean squared error", /*is_share=*/false, /*greater_is_better=*/false},
          {"pearson", "Pearson correlation", /*is_share=*/false},
          {"spearman", "Spearman correlation", /*is_share=*/false}};
}

}  // namespace

Regression::Regression(std::string_view metric) : metrics_(regression_metrics(), /*num_shown=*/2, metric) {}

at::Tensor Regression::targets(const LabeledRows& rows) const {
  auto targets = at::empty({static_cast<int64_t>(rows.labels.size())}, at::kFloat);
  for (size_t i = 0; i < rows.labels.size(); ++i) {
    const auto* number = std::get_if<double>(&rows.labels[i]);
    TORCH_CHECK_VALUE(number != nullptr, rows.where(i),
                      "the row has no number to learn. Give it one, or remove the row.");
    const auto value = static_cast<float>(*number);
    TORCH_CHECK_VALUE(std::isfinite(value), rows.where(i), fmt::format("{}", *number),
                      " is beyond what float32 holds. Scale the numbers down.");
    targets.mutable_data_ptr<float>()[i] = value;
  }
  return targets;
}

std::vector<std::string> Regression::odd_rows(const LabeledRows& rows) const { return text::odd_texts(rows); }

at::Tensor Regression::loss(const at::Tensor& outputs, const PackedBatch& batch) const {
  return at::mse_loss(outputs.to(at::kFloat).squeeze(1), batch.targets, at::Reduction::Sum);
}

std::shared_ptr<const Task> Regression::with_loss(const LossOptions& options, const at::Tensor&, c10::Device) const {
  TORCH_CHECK_VALUE(options == LossOptions(),
                    "--class-weights, --label-smoothing and --focal-gamma are for labels; regression has numbers");
  return std::make_shared<Regression>(*this);
}

std::string Regression::why_undefined(const at::Tensor& targets) const {
  if (metrics().front().name == "mean_squared_error") return "";
  if (targets.size(0) < 2) return "there is one text";
  const auto first = targets[0];
  return targets.eq(first).all().item<bool>() ? fmt::format("all numbers are {}", first.item<float>()) : "";
}

Evaluation Regression::evaluate(const at::Tensor& outputs, const at::Tensor& targets) const {
  const auto predicted = outputs.squeeze(1).to(at::kDouble).contiguous(), is = targets.to(at::kDouble);
  const double error = mean_squared_error(elements<double>(is), elements<double>(predicted));
  Evaluation evaluation = metrics_.begin(error);
  if (!std::isfinite(error)) return evaluation;
  const double values[] = {error, pearson(elements<double>(is), elements<double>(predicted)),
                           spearman(elements<double>(is), elements<double>(predicted))};
  metrics_.fill(evaluation, values);
  const auto known = regression_metrics();
  for (size_t i = 0; i < known.size(); ++i) {
    evaluation.report += fmt::format("{:>20}  {:>12}\n", known[i].title,
                                     std::isnan(values[i]) ? "NaN" : fmt::format("{:.6g}", values[i]));
  }
  return evaluation;
}

std::vector<Prediction> Regression::predictions(const at::Tensor& outputs,
                                                const WordsOfTexts&,
                                                const PredictionOptions& options) const {
  TORCH_CHECK_VALUE(options == PredictionOptions(),
                    "--min-score and --top-k are for labels; the model is trained for regression");
  std::vector<Prediction> predictions;
  for (const float value : elements<float>(outputs.contiguous())) predictions.push_back({{"value", double{value}}});
  return predictions;
}

}  // namespace mezzo::text
