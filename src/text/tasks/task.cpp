#include "mezzo/text/tasks/task.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "mezzo/text/tasks/multi_label_classification.h"
#include "mezzo/text/tasks/regression.h"
#include "mezzo/text/tasks/single_label_classification.h"
#include "mezzo/text/tasks/token_classification.h"
#include "text/data/data_check.h"
#include "text/io/known_value.h"
#include "text/models/problem_types.h"

namespace mezzo::text {

MetricChoice::MetricChoice(std::vector<MetricInfo> known, size_t num_shown, std::string_view deciding)
    : known_(std::move(known)), shown_(known_.begin(), known_.begin() + static_cast<std::ptrdiff_t>(num_shown)) {
  if (deciding.empty()) return;
  std::vector<std::string> names;
  for (const MetricInfo& metric : known_) names.push_back(metric.name);
  check_known("--metric", deciding, names);
  std::erase_if(shown_, [&](const MetricInfo& metric) { return metric.name == deciding; });
  shown_.insert(shown_.begin(), *std::ranges::find(known_, deciding, &MetricInfo::name));
}

Evaluation MetricChoice::begin(double loss) const {
  Evaluation evaluation;
  evaluation.loss = loss;
  evaluation.metrics.assign(shown_.size(), std::nan(""));
  return evaluation;
}

void MetricChoice::fill(Evaluation& evaluation, std::span<const double> values, ClassificationReport report) const {
  fill(evaluation, values);
  evaluation.report = report.to_text();
  evaluation.never_predicted = report.never_predicted();
  evaluation.confusion_matrix = std::move(report.confusion);
}

void MetricChoice::fill(Evaluation& evaluation, std::span<const double> values) const {
  TORCH_INTERNAL_ASSERT(values.size() == known_.size());
  const auto value_of = [&](const MetricInfo& metric) {
    return values[static_cast<size_t>(std::ranges::find(known_, metric.name, &MetricInfo::name) - known_.begin())];
  };
  evaluation.metrics.clear();
  for (const MetricInfo& metric : shown_) evaluation.metrics.push_back(value_of(metric));
  for (const MetricInfo& metric : known_) {
    if (std::ranges::find(shown_, metric.name, &MetricInfo::name) == shown_.end()) {
      evaluation.details.emplace_back(metric.name, value_of(metric));
    }
  }
}

bool Task::is_better(const ModelScore& score, const std::optional<ModelScore>& best) const {
  if (!std::isfinite(score.loss) || !best) return std::isfinite(score.loss);
  if (std::isnan(score.value) || std::isnan(best->value)) return score.loss < best->loss;
  return text::is_better(score, *best, metrics().front().greater_is_better);
}

std::string Task::why_undefined(const at::Tensor&) const { return ""; }

void Task::describe(ModelConfig& config) const {
  config.problem_type = problem_type();
  config.label_names = label_names();
}

std::vector<Mistake> Task::mistakes(const at::Tensor&, const at::Tensor&) const { return {}; }

Tuning Task::tune(const at::Tensor&, const at::Tensor&) const { return {}; }

static_assert(std::ranges::equal(kProblemTypes,
                                 std::array{SingleLabelClassification::kProblemType,
                                            MultiLabelClassification::kProblemType, Regression::kProblemType,
                                            TokenClassification::kProblemType},
                                 {},
                                 &ProblemType::name));

LabelKind label_kind(std::string_view problem_type) {
  if (problem_type.empty() || problem_type == SingleLabelClassification::kProblemType) return LabelKind::kClass;
  if (problem_type == MultiLabelClassification::kProblemType) return LabelKind::kSeveral;
  if (problem_type == TokenClassification::kProblemType) return LabelKind::kWords;
  TORCH_CHECK_VALUE(problem_type == Regression::kProblemType, "problem_type is \"", problem_type,
                    "\", mezzo supports: ", fmt::format("{}", fmt::join(problem_type_names(), ", ")));
  return LabelKind::kNumber;
}

std::shared_ptr<const Task> make_task(const LabeledRows& rows, const TaskOptions& options) {
  TORCH_CHECK_VALUE(!rows.labels.empty(), rows.places.file, ": has no rows, so there is nothing to learn from");
  check_labels_differ(rows);
  const auto labels = [&] {
    if (!options.label_names.empty()) return LabelMap::from_names(options.label_names);
    auto labels_of_rows = LabelMap::from_rows(rows);
    if (options.problem_type.empty()) check_are_classes(rows, labels_of_rows, "--task");
    return labels_of_rows;
  };
  const LabelKind kind = label_kind(options.problem_type);
  TORCH_CHECK_VALUE(kind != LabelKind::kNumber || options.label_names.empty(),
                    "--labels names classes, and regression has none; leave it out");
  TORCH_CHECK_VALUE(!options.calibrate || kind == LabelKind::kClass,
                    "--calibrate fits the confidence of single labels; the task is ", options.problem_type);
  switch (kind) {
    case LabelKind::kClass:
      return std::make_shared<SingleLabelClassification>(labels(), options.metric, options.on_unknown_label,
                                                         options.calibrate);
    case LabelKind::kSeveral:
      return std::make_shared<MultiLabelClassification>(labels(), options.metric, options.on_unknown_label);
    case LabelKind::kNumber: return std::make_shared<Regression>(options.metric);
    case LabelKind::kWords:
      return std::make_shared<TokenClassification>(labels(), options.metric, options.on_unknown_label);
    case LabelKind::kNone: break;
  }
  return nullptr;
}

std::shared_ptr<const Task> make_task(const ModelConfig& config) {
  const auto labels = [&] { return LabelMap::from_names(config.label_names); };
  switch (label_kind(config.problem_type)) {
    case LabelKind::kClass: return std::make_shared<SingleLabelClassification>(labels());
    case LabelKind::kSeveral: return std::make_shared<MultiLabelClassification>(labels());
    case LabelKind::kNumber: return std::make_shared<Regression>();
    case LabelKind::kWords: return std::make_shared<TokenClassification>(labels());
    case LabelKind::kNone: break;
  }
  return nullptr;
}

}  // namespace mezzo::text
