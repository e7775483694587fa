#include "mezzo/text/tasks/task.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "mezzo/text/tasks/single_label_classification.h"
#include "text/data/data_check.h"
#include "text/models/problem_types.h"

namespace mezzo::text {

bool Task::is_better(double value, std::optional<double> best) const {
  if (std::isnan(value) || !best) {
    return !std::isnan(value);
  }
  return metrics().front().greater_is_better ? value > *best : value < *best;
}

std::shared_ptr<const Task> make_task(const LabeledRows& rows, const TaskOptions& options) {
  TORCH_CHECK_VALUE(!rows.labels.empty(), rows.file, ": has no rows, so there is nothing to learn from");
  check_has_two_labels(rows);
  return std::make_shared<SingleLabelClassification>(options.label_names.empty()
                                                         ? LabelMap::from_rows(rows, options.allow_empty_classes)
                                                         : LabelMap::from_names(options.label_names));
}

static_assert(
    std::ranges::equal(kProblemTypes, std::array{SingleLabelClassification::kProblemType}, {}, &ProblemType::name));

std::shared_ptr<const Task> make_task(std::string_view problem_type, std::vector<std::string> label_names) {
  TORCH_CHECK_VALUE(problem_type == SingleLabelClassification::kProblemType, "problem_type is \"", problem_type,
                    "\", mezzo runs: ", fmt::format("{}", fmt::join(problem_type_names(), ", ")));
  return std::make_shared<SingleLabelClassification>(LabelMap::from_names(std::move(label_names)));
}

}  // namespace mezzo::text
