#pragma once

#include <cstdint>
#include <string_view>

namespace mezzo {

/// The shape of the learning rate over a run, as transformers' `get_*_schedule_with_warmup` functions give it.
enum class LrScheduleKind { kConstant, kLinear, kCosine };

/// @throws c10::ValueError  that lists the names, for any but "constant", "linear" and "cosine".
LrScheduleKind parse_lr_schedule(std::string_view name);

/// A learning-rate factor for each optimizer step: from 0 up to 1 over
/// `warmup_steps`, then constant, or down to 0 at `total_steps` along a line or
/// half a cosine.
///
/// A pure function of the count of steps **taken**, so a step that GradScaler
/// skipped does not advance it: ask with the number of updates done so far.
struct LrSchedule {
  LrScheduleKind kind = LrScheduleKind::kConstant;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;

  /// @param step  updates done before this one, from 0.
  double factor(int64_t step) const;
};

}  // namespace mezzo
