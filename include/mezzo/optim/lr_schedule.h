#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mezzo {

/// The shape of the learning rate over a run: transformers' SchedulerType, by the same names.
enum class LrScheduleKind {
  kLinear,
  kCosine,
  kCosineWithRestarts,
  kPolynomial,
  kConstant,
  kConstantWithWarmup,
  kInverseSqrt,
  kReduceLrOnPlateau,
  kCosineWithMinLr,
  kCosineWarmupWithMinLr,
  kWarmupStableDecay,
  kGreedy,
};

/// The twelve names of transformers.
std::vector<std::string> lr_schedule_names();

/// From transformers' names: "linear", "cosine", "cosine_with_restarts", …
/// @throws c10::ValueError  that lists the names, for any other.
LrScheduleKind parse_lr_schedule(std::string_view name);

/// Whether the learning rate follows a metric, by a MetricSchedule, and not the count of steps.
bool follows_metric(LrScheduleKind kind);

/// Whether the learning rate at a step depends on how many steps there will be, where a warmup is a share of them all.
bool depends_on_total_steps(LrScheduleKind kind, bool has_warmup);

/// How a warmup or decay of kWarmupStableDecay goes from one end to the other.
enum class RampShape { kLinear, kCosine, kOneMinusSqrt };

/// A learning-rate factor for each optimizer step: up to 1 over `warmup_steps`, then down until
/// `total_steps`, by the formulas of transformers' `get_*_schedule*` functions. Ask with the number
/// of updates done so far: a step that GradScaler skipped is none.
///
/// Differs from transformers: kConstant warms up too, if asked; smallest learning rates are ratios,
/// for kPolynomial too (`lr_end` there); where warmup takes all of the run, kPolynomial ends in its
/// last value instead of dividing by 0.
struct LrSchedule {
  LrScheduleKind kind = LrScheduleKind::kConstant;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  /// What is left in the end: of kPolynomial, the two with MinLr and
  /// kWarmupStableDecay, which also starts there.
  double min_lr_ratio = 0;
  std::optional<double> num_cycles = {};  ///< waves of a cosine, by default half a one; or restarts, by default 1
  double power = 1;                       ///< of kPolynomial
  std::optional<int64_t> timescale = {};  ///< of kInverseSqrt, in steps; by default the warmup, or 10000
  /// Of kCosineWarmupWithMinLr: where it starts; by default 1 / warmup_steps.
  std::optional<double> warmup_lr_ratio = {};
  int64_t decay_steps = 0;                      ///< of kWarmupStableDecay, the last of `total_steps`
  RampShape warmup_shape = RampShape::kLinear;  ///< of kWarmupStableDecay
  RampShape decay_shape = RampShape::kCosine;   ///< of kWarmupStableDecay

  /// 1 for the kinds that follow a metric.
  /// @param step  updates done before this one, from 0.
  double factor(int64_t step) const;
};

}  // namespace mezzo
