#include "text/report/run_warnings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "text/io/printable.h"
#include "text/io/words.h"

namespace mezzo::text {
namespace {

constexpr size_t kWindow = 10;    // losses of single steps vary too much to compare
constexpr double kFarAbove = 3;   // times the loss at the start
constexpr double kClearly = 1.1;  // times the least loss on dev: a smaller rise says little
constexpr size_t kMostNamed = 5;  // to name
constexpr double kStandardErrors = 2;

struct Mean {
  explicit Mean(std::span<const double> values) {
    const auto count = static_cast<double>(values.size());
    value = std::accumulate(values.begin(), values.end(), 0.0) / count;
    for (const double each : values) squared_error += std::pow(each - value, 2) / (count * (count - 1));
  }
  double value = 0;
  double squared_error = 0;  // of the mean
};

/// The mean loss at the start and at the end of training: of a tenth of its steps each.
struct Ends {
  explicit Ends(std::span<const double> losses)
      : steps(std::max(kWindow, losses.size() / 10)), start(losses.first(steps)), end(losses.last(steps)) {}
  /// More than the spread of the steps' losses explains.
  bool differ() const {
    return std::abs(end.value - start.value) > kStandardErrors * std::sqrt(start.squared_error + end.squared_error);
  }
  size_t steps;
  Mean start, end;
};

}  // namespace

std::optional<WarningRecord> RunWarnings::step(const StepRecord& record) {
  const bool is_finite = std::isfinite(record.loss);
  if (is_finite) losses_.push_back(record.loss);
  if (has_diverged_) return std::nullopt;
  constexpr const char* kRemedy = "Lower --learning-rate ({:.2g} in this step), or clip with --max-grad-norm 1";
  std::string text;
  if (!is_finite) {
    text = fmt::format("step {}: the loss is inf or NaN. {}, or use another --precision.", record.step,
                       fmt::format(kRemedy, record.lr));
  } else if (losses_.size() >= 2 * kWindow) {
    const double start = Mean(std::span(losses_).first(kWindow)).value,
                 now = Mean(std::span(losses_).last(kWindow)).value;
    if (now > kFarAbove * start) {
      text = fmt::format("step {}: the mean loss of {} steps is {}, and was {} at the start. {}.", record.step, kWindow,
                         fixed(now, 3), fixed(start, 3), fmt::format(kRemedy, record.lr));
    }
  }
  has_diverged_ = !text.empty();
  return has_diverged_ ? std::optional(WarningRecord{record.step, "diverged", std::move(text)}) : std::nullopt;
}

std::optional<WarningRecord> RunWarnings::eval(const EvalRecord& record) {
  if (record.split != "dev" || !std::isfinite(record.loss)) return std::nullopt;
  if (record.is_final) {
    kept_ = record;
    return std::nullopt;
  }
  evals_.push_back(record);
  if (record.metrics.empty() || !std::isnan(record.metrics.front().second)) return std::nullopt;
  return WarningRecord{record.step, "undefined_metric",
                       fmt::format("step {}: the metric {} is undefined for the predictions on dev. The dev loss "
                                   "compares such a model with others. If this goes on, pass another --metric.",
                                   record.step, record.metrics.front().first)};
}

std::vector<WarningRecord> RunWarnings::end(std::optional<int64_t> best_step) const {
  std::vector<WarningRecord> warnings;
  const auto warn = [&](const char* kind, std::string text) { warnings.push_back({0, kind, std::move(text)}); };
  const auto ends = losses_.size() >= 2 * kWindow ? std::optional<Ends>(losses_) : std::nullopt;
  const bool has_changed = ends && ends->differ();
  if (has_changed && ends->end.value > ends->start.value && !has_diverged_) {
    warn("loss_rises",
         fmt::format("the training loss rose: its mean is {} over the first {} steps and {} over the last. "
                     "Lower --learning-rate, and check the labels of the training data.",
                     fixed(ends->start.value, 3), ends->steps, fixed(ends->end.value, 3)));
  }
  const auto least = std::ranges::min_element(evals_, {}, &EvalRecord::loss);
  if (has_changed && ends->end.value < ends->start.value && least != evals_.end() &&
      evals_.back().loss > kClearly * least->loss) {
    warn("overfits",
         fmt::format("the loss on dev rose from {} (step {}) to {} (step {}) while the training loss fell: the "
                     "model overfits. Pass fewer --epochs, a lower --learning-rate, or --patience 3.",
                     fixed(least->loss, 3), least->step, fixed(evals_.back().loss, 3), evals_.back().step));
  }
  const auto best = std::ranges::find_if(evals_, [&](const EvalRecord& eval) { return eval.step == best_step; });
  if (best == evals_.end()) return warnings;
  const EvalRecord& kept = kept_ ? *kept_ : *best;
  if (const auto& labels = kept.never_predicted; !labels.empty()) {
    std::vector<std::string> names;
    for (const auto& label : std::span(labels).first(std::min(labels.size(), kMostNamed))) {
      names.push_back(quoted_name(label));
    }
    warn("never_predicted", fmt::format("the model never predicts {} on dev: {}{}. Add training texts of such labels, "
                                        "train longer, or pass --class-weights balanced.",
                                        counted(std::ssize(labels), "label"), fmt::join(names, ", "),
                                        labels.size() > kMostNamed ? ", …" : ""));
  }
  const auto accuracy = std::ranges::find(kept.metrics, "accuracy", &std::pair<std::string, double>::first);
  if (kept.majority_baseline && accuracy != kept.metrics.end() && accuracy->second <= *kept.majority_baseline) {
    warn("majority_baseline",
         fmt::format("accuracy on dev is {}, and {} if every text gets the most frequent label. The model has learned "
                     "nothing that helps: train longer, or with another --learning-rate.",
                     fixed(accuracy->second, 4), fixed(*kept.majority_baseline, 4)));
  }
  return warnings;
}

}  // namespace mezzo::text
