#include "mezzo/text/tasks/classification.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "text/data/data_check.h"
#include "text/io/known_value.h"
#include "text/io/printable.h"
#include "text/tasks/class_weights.h"

namespace mezzo::text {

Classification::Classification(LabelMap labels, MetricChoice metrics, std::string on_unknown_label)
    : labels_(std::move(labels)), metrics_(std::move(metrics)), on_unknown_label_(std::move(on_unknown_label)) {}

std::vector<std::string> Classification::odd_rows(const LabeledRows& rows) const {
  return text::odd_rows(rows, labels_);
}

std::vector<std::string> Classification::untrained(const at::Tensor& targets, const std::string& why) const {
  return labels_without_text(has_text(targets), labels_, "training text" + why);
}

std::string Classification::why_undefined(const at::Tensor& targets) const {
  if (metrics().front().name != "roc_auc") return "";
  const auto missing = labels_without_text(has_text(targets), labels_, "text");
  if (!missing.empty()) return missing.front();
  const auto of_all = label_counts(targets).eq(targets.size(0)).nonzero();
  return of_all.numel() == 0 ? "" : "all texts have label " + quoted_name(labels_.name(of_all[0].item<int64_t>()));
}

std::vector<bool> Classification::has_text(const at::Tensor& targets) const {
  const auto counts = label_counts(targets);
  std::vector<bool> has_text;
  for (int64_t label = 0; label < labels_.size(); ++label) {
    has_text.push_back(counts.const_data_ptr<int64_t>()[label] > 0);
  }
  return has_text;
}

std::shared_ptr<const Task> Classification::with_loss(const LossOptions& options,
                                                      const at::Tensor& targets,
                                                      c10::Device device) const {
  auto task = clone();
  task->loss_options_ = options;
  task->class_weights_ = at::Tensor();
  if (options.class_weights.empty()) return task;
  auto weights = at::ones({labels_.size()}, at::kDouble);
  if (options.class_weights == kBalanced) {
    const auto balanced = balanced_weights(label_counts(targets), targets.size(0));
    weights = at::where(at::isfinite(balanced) & (balanced > 0), balanced, weights);
  } else {
    for (const auto& [name, weight] : parse_class_weights(options.class_weights)) {
      const auto id = labels_.id(name);
      if (!id) check_known("--class-weights: label", name, labels_.names());
      weights.mutable_data_ptr<double>()[*id] = weight;
    }
  }
  task->class_weights_ = weights.to(at::TensorOptions(at::kFloat).device(device));
  return task;
}

std::vector<std::pair<std::string, double>> Classification::scores_by_name(std::span<const double> scores,
                                                                           const PredictionOptions& options) const {
  std::vector<int64_t> ids(scores.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (options.top_k) {
    const auto count = std::min(static_cast<size_t>(*options.top_k), ids.size());
    std::ranges::partial_sort(ids, ids.begin() + static_cast<std::ptrdiff_t>(count), [&](int64_t a, int64_t b) {
      return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
    });
    ids.resize(count);
  }
  std::vector<std::pair<std::string, double>> by_name;
  for (const int64_t id : ids) by_name.emplace_back(labels_.name(id), scores[id]);
  return by_name;
}

}  // namespace mezzo::text
