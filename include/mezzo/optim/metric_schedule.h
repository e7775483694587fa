#pragma once

#include "mezzo/cpp20.h"

#include <torch/arg.h>

#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "mezzo/optim/lr_schedule.h"

namespace mezzo {

/// The defaults are those of torch.optim.lr_scheduler.ReduceLROnPlateau.
struct MetricScheduleOptions {
  /// Multiplies the learning rate when it falls; divides it when it grows. In (0, 1).
  TORCH_ARG(double, factor) = 0.1;
  /// Observations without (or, to grow, with) improvement in a row that change nothing yet.
  TORCH_ARG(int64_t, patience) = 10;
  /// How much better than the best a metric must be to count.
  TORCH_ARG(double, threshold) = 1e-4;
  /// Whether `threshold` is a share of the best, or else a difference.
  TORCH_ARG(bool, relative_threshold) = true;
  /// Observations that are passed over after the learning rate fell.
  TORCH_ARG(int64_t, cooldown) = 0;
  /// kGreedy: observations that are passed over after it grew.
  TORCH_ARG(int64_t, warmup) = 0;
  TORCH_ARG(double, min_lr) = 0;
  /// kGreedy.
  TORCH_ARG(double, max_lr) = 1;
  /// Changes of the learning rate up to this are not made.
  TORCH_ARG(double, eps) = 1e-8;
  /// kGreedy: falls at `min_lr` after which it starts afresh, from the first learning rate.
  TORCH_ARG(int64_t, reset_after) = 500;
  /// Whether a larger metric is better, as an accuracy, or a smaller one, as a loss.
  TORCH_ARG(bool, maximize) = false;

 public:
  /// The defaults of transformers' GreedyLR.
  static MetricScheduleOptions greedy();
};

/// A learning rate that follows a metric, such as the loss on dev: kReduceLrOnPlateau lowers it
/// when the metric has not improved for a while; kGreedy (arXiv 2512.14527) also raises it when it
/// keeps improving. Not thread-safe.
///
/// @see torch.optim.lr_scheduler.ReduceLROnPlateau, transformers' GreedyLR (Python). Same numbers.
/// Differs: one learning rate, GreedyLR without smoothing.
class MetricSchedule {
 public:
  /// @throws c10::ValueError  for another kind, or an option out of its range.
  MetricSchedule(LrScheduleKind kind, double lr, MetricScheduleOptions options = {});

  double lr() const { return state_.lr; }

  /// Takes note of a metric. One that is NaN is no improvement.
  void observe(double metric);

  /// Its counters by name; "best" only when there is one.
  std::map<std::string, double> state_dict() const;
  /// @throws c10::ValueError  for a missing entry; nothing has changed then.
  void load_state_dict(const std::map<std::string, double>& state);

 private:
  struct State {
    double lr, best;
    int64_t bad = 0, good = 0;  // in a row
    int64_t cooldown_left = 0, warmup_left = 0, resets_in = 0;
  };

  State initial_state() const;
  bool improves(double metric) const;
  void observe_plateau(double metric);
  void observe_greedy(double metric);
  void lower();
  void lower_or_reset();
  void raise();

  LrScheduleKind kind_;
  double first_lr_;
  MetricScheduleOptions options_;
  State state_;
};

}  // namespace mezzo
