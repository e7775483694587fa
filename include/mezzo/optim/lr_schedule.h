#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mezzo {

/// The factor of the learning rate at an optimizer step. `step` counts the earlier updates, from 0.
/// Any function is allowed. The schedules below are thread-safe if each thread has a copy.
using LrSchedule = std::function<double(int64_t step)>;

/// The arguments of transformers' `get_*_schedule*` functions. Each schedule reads the fields it
/// needs.
struct LrScheduleOptions {
  int64_t num_warmup_steps = 0;    ///< steps in which the factor rises
  int64_t num_training_steps = 0;  ///< steps of the run; 0: unknown
  /// The smallest factor of four schedules. Its names in transformers: lr_end / lr ("polynomial"),
  /// min_lr_rate ("cosine_with_min_lr", "cosine_warmup_with_min_lr") and min_lr_ratio
  /// ("warmup_stable_decay").
  double min_lr_rate = 0;
  std::optional<double> num_cycles = {};      ///< waves of a cosine, default 0.5; restarts, default 1
  double power = 1;                           ///< of "polynomial"
  std::optional<int64_t> timescale = {};      ///< of "inverse_sqrt", in steps; default: the warmup, or 10000
  std::optional<double> warmup_lr_rate = {};  ///< first factor of "cosine_warmup_with_min_lr"; default 1 / warmup
  int64_t num_decay_steps = 0;                ///< of "warmup_stable_decay": number of steps at the end of training
  std::string_view warmup_type = "linear";    ///< of "warmup_stable_decay": linear, cosine or 1-sqrt
  std::string_view decay_type = "cosine";     ///< of "warmup_stable_decay": linear, cosine or 1-sqrt
};

/// A schedule of transformers by its name: "linear", "cosine", "cosine_with_restarts",
/// "polynomial", "constant", "constant_with_warmup", "inverse_sqrt", "cosine_with_min_lr",
/// "cosine_warmup_with_min_lr" or "warmup_stable_decay". "reduce_lr_on_plateau" and "greedy" give
/// the constant 1: see ReduceLROnPlateau and GreedyLR.
/// @throws c10::ValueError  for another name; the message lists the names
/// @throws c10::ValueError  if the schedule needs `num_training_steps` and has none
/// @throws c10::ValueError  for an unknown `warmup_type` or `decay_type`
/// @see transformers.get_scheduler (Python). Same numbers. Differs: "constant" warms up if asked;
///     "polynomial" without decay steps ends at its last value instead of dividing by 0.
LrSchedule get_schedule(std::string_view name, LrScheduleOptions options = {});

/// The twelve names of transformers.
std::vector<std::string> lr_schedule_names();

/// Whether the learning rate follows a metric instead of the step.
bool follows_metric(std::string_view name);

/// Whether factors depend on `num_training_steps`. `has_warmup`: the warmup is a share of these
/// steps.
bool depends_on_total_steps(std::string_view name, bool has_warmup);

/// Multiplies the learning rate by `gamma` every `step_size` steps. As the other schedules of
/// torch.optim.lr_scheduler below, it computes the closed formula. Python multiplies step by step,
/// so results differ by rounding.
/// @throws c10::ValueError  for a `step_size` below 1
LrSchedule step_lr(int64_t step_size, double gamma = 0.1);
/// Multiplies the learning rate by `gamma` at each milestone.
/// @throws c10::ValueError  for unsorted milestones
LrSchedule multi_step_lr(std::vector<int64_t> milestones, double gamma = 0.1);
/// Multiplies the learning rate by `gamma` at each step.
LrSchedule exponential_lr(double gamma);
/// One schedule after another: at each milestone the next one starts, at its step 0.
/// @throws c10::ValueError  for unsorted milestones, or a wrong number of them
LrSchedule sequential_lr(std::vector<LrSchedule> schedules, std::vector<int64_t> milestones);

/// The options of torch.optim.lr_scheduler.OneCycleLR, with Python's names and defaults.
struct OneCycleLROptions {
  int64_t total_steps = 0;                   ///< of the cycle, at least 1
  double pct_start = 0.3;                    ///< share of the steps in which the learning rate rises
  std::string_view anneal_strategy = "cos";  ///< or "linear"
  double div_factor = 25;                    ///< first learning rate: the largest divided by this
  double final_div_factor = 1e4;             ///< last learning rate: the first divided by this
  bool three_phase = false;                  ///< true: falls to the first learning rate, then to the last
};

/// The one-cycle schedule of the optimizer's learning rate, which is Python's `max_lr`. Does not
/// change momentum.
/// @see torch.optim.lr_scheduler.OneCycleLR (Python). Differs: the last factor stays after the last
///     step, where Python raises an error.
LrSchedule one_cycle_lr(const OneCycleLROptions& options);

}  // namespace mezzo
