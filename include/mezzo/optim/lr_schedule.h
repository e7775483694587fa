#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mezzo {

/// The factor of the learning rate at an optimizer step: `step` counts the updates done before it,
/// from 0. Any function will do; those below are as thread-safe as their copies are.
using LrSchedule = std::function<double(int64_t step)>;

/// What transformers' `get_*_schedule*` functions take. Each schedule reads the fields it knows.
struct LrScheduleOptions {
  int64_t num_warmup_steps = 0;
  int64_t num_training_steps = 0;
  /// The smallest factor: of "polynomial" (transformers: lr_end / lr), of "cosine_with_min_lr" and
  /// "cosine_warmup_with_min_lr" (min_lr_rate), and of "warmup_stable_decay" (min_lr_ratio).
  double min_lr_rate = 0;
  std::optional<double> num_cycles = {};      ///< waves of a cosine, default 0.5; restarts, default 1
  double power = 1;                           ///< of "polynomial"
  std::optional<int64_t> timescale = {};      ///< of "inverse_sqrt", in steps; default: the warmup, or 10000
  std::optional<double> warmup_lr_rate = {};  ///< first factor of "cosine_warmup_with_min_lr"; default 1 / warmup
  int64_t num_decay_steps = 0;                ///< of "warmup_stable_decay": the last of the training steps
  std::string_view warmup_type = "linear";    ///< of "warmup_stable_decay": linear, cosine or 1-sqrt
  std::string_view decay_type = "cosine";     ///< of "warmup_stable_decay": linear, cosine or 1-sqrt
};

/// A schedule of transformers by its name: "linear", "cosine", "cosine_with_restarts", "polynomial",
/// "constant", "constant_with_warmup", "inverse_sqrt", "cosine_with_min_lr",
/// "cosine_warmup_with_min_lr" or "warmup_stable_decay". "reduce_lr_on_plateau" and "greedy" give
/// the constant 1: see ReduceLROnPlateau and GreedyLR.
/// @throws c10::ValueError  for another name, which lists these; for a schedule that needs
///     `num_training_steps` and has none; for an unknown `warmup_type` or `decay_type`
/// @see transformers.get_scheduler (Python). Same numbers. Differs: "constant" warms up if asked;
///     "polynomial" without decay steps ends at its last value instead of dividing by 0.
LrSchedule get_schedule(std::string_view name, LrScheduleOptions options = {});

/// The twelve names of transformers.
std::vector<std::string> lr_schedule_names();

/// Whether the learning rate follows a metric instead of the step.
bool follows_metric(std::string_view name);

/// Whether factors depend on `num_training_steps`, if a warmup is a share of these.
bool depends_on_total_steps(std::string_view name, bool has_warmup);

/// The schedules of torch.optim.lr_scheduler by the same names. They compute the closed formulas;
/// Python multiplies step by step, so results differ by rounding.
/// @throws c10::ValueError  for a `step_size` below 1, unsorted milestones, or other counts
LrSchedule step_lr(int64_t step_size, double gamma = 0.1);
LrSchedule multi_step_lr(std::vector<int64_t> milestones, double gamma = 0.1);
LrSchedule exponential_lr(double gamma);
/// One schedule after another: the next one starts, at its step 0, at each milestone.
LrSchedule sequential_lr(std::vector<LrSchedule> schedules, std::vector<int64_t> milestones);

struct OneCycleLROptions {
  int64_t total_steps = 0;
  double pct_start = 0.3;
  std::string_view anneal_strategy = "cos";  ///< or "linear"
  double div_factor = 25;
  double final_div_factor = 1e4;
  bool three_phase = false;
};

/// Of the optimizer's learning rate, which is Python's `max_lr`. Leaves momentum alone.
/// @see torch.optim.lr_scheduler.OneCycleLR (Python), which refuses steps after the last; here the
///     last factor stays.
LrSchedule one_cycle_lr(const OneCycleLROptions& options);

}  // namespace mezzo
