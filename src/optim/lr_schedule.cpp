#include "mezzo/optim/lr_schedule.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace mezzo {

LrScheduleKind parse_lr_schedule(std::string_view name) {
  if (name == "constant") return LrScheduleKind::kConstant;
  if (name == "linear") return LrScheduleKind::kLinear;
  if (name == "cosine") return LrScheduleKind::kCosine;
  TORCH_CHECK_VALUE(false, "learning rate schedule '", name, "' is not known: constant, linear, cosine");
}

double LrSchedule::factor(int64_t step) const {
  if (step < warmup_steps) {
    return static_cast<double>(step) / static_cast<double>(warmup_steps);
  }
  const auto decay_steps = static_cast<double>(std::max<int64_t>(1, total_steps - warmup_steps));
  const double progress = static_cast<double>(step - warmup_steps) / decay_steps;
  switch (kind) {
    case LrScheduleKind::kConstant: return 1;
    case LrScheduleKind::kLinear: return std::max(0.0, 1 - progress);
    case LrScheduleKind::kCosine: return std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * progress)));
  }
  TORCH_INTERNAL_ASSERT(false, "unknown learning rate schedule");
}

}  // namespace mezzo
