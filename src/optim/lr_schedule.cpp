#include "mezzo/optim/lr_schedule.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

namespace mezzo {
namespace {

using enum LrScheduleKind;

constexpr std::array<std::pair<std::string_view, LrScheduleKind>, 12> kNames = {{
    {"linear", kLinear},
    {"cosine", kCosine},
    {"cosine_with_restarts", kCosineWithRestarts},
    {"polynomial", kPolynomial},
    {"constant", kConstant},
    {"constant_with_warmup", kConstantWithWarmup},
    {"inverse_sqrt", kInverseSqrt},
    {"reduce_lr_on_plateau", kReduceLrOnPlateau},
    {"cosine_with_min_lr", kCosineWithMinLr},
    {"cosine_warmup_with_min_lr", kCosineWarmupWithMinLr},
    {"warmup_stable_decay", kWarmupStableDecay},
    {"greedy", kGreedy},
}};

constexpr double kHalfWave = 0.5;

/// From 1 at progress 0 along a cosine; to 0 at progress 1 if it is half a wave.
double cosine(double waves, double progress) { return 0.5 * (1 + std::cos(std::numbers::pi * waves * 2 * progress)); }

double above_minimum(double factor, double minimum) { return std::max(0.0, factor * (1 - minimum) + minimum); }

double ratio(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
}

double ramp_up(RampShape shape, double progress) {
  switch (shape) {
    case RampShape::kLinear: return progress;
    case RampShape::kCosine: return 0.5 * (1 - std::cos(std::numbers::pi * progress));
    case RampShape::kOneMinusSqrt: return 1 - std::sqrt(1 - progress);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown ramp");
}

double ramp_down(RampShape shape, double progress, double waves) {
  switch (shape) {
    case RampShape::kLinear: return 1 - progress;
    case RampShape::kCosine: return cosine(waves, progress);
    case RampShape::kOneMinusSqrt: return 1 - std::sqrt(progress);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown ramp");
}

double warmup_factor(const LrSchedule& schedule, int64_t step) {
  if (schedule.kind == kWarmupStableDecay) {
    return above_minimum(ramp_up(schedule.warmup_shape, ratio(step, schedule.warmup_steps)), schedule.min_lr_ratio);
  }
  if (schedule.kind != kCosineWarmupWithMinLr) {
    return ratio(step, schedule.warmup_steps);
  }
  if (!schedule.warmup_lr_ratio) {
    return ratio(step + 1, schedule.warmup_steps);
  }
  return *schedule.warmup_lr_ratio + (1 - *schedule.warmup_lr_ratio) * ratio(step, schedule.warmup_steps - 1);
}

double polynomial(const LrSchedule& schedule, double progress) {
  const double remaining = std::pow(1 - std::min(1.0, progress), schedule.power);
  return remaining * (1 - schedule.min_lr_ratio) + schedule.min_lr_ratio;
}

double inverse_sqrt(const LrSchedule& schedule, int64_t step) {
  const int64_t timescale = schedule.timescale.value_or(schedule.warmup_steps > 0 ? schedule.warmup_steps : 10'000);
  return 1 / std::sqrt(ratio(step + timescale - schedule.warmup_steps, timescale));
}

double stable_decay(const LrSchedule& schedule, int64_t step) {
  const int64_t decayed = step - (schedule.total_steps - schedule.decay_steps);
  if (decayed < 0) {
    return 1;
  }
  if (decayed >= schedule.decay_steps) {
    return schedule.min_lr_ratio;
  }
  const double waves = schedule.num_cycles.value_or(kHalfWave);
  return above_minimum(ramp_down(schedule.decay_shape, ratio(decayed, schedule.decay_steps), waves),
                       schedule.min_lr_ratio);
}

}  // namespace

std::vector<std::string> lr_schedule_names() {
  std::vector<std::string> names;
  for (const auto& [name, kind] : kNames) {
    names.emplace_back(name);
  }
  return names;
}

LrScheduleKind parse_lr_schedule(std::string_view name) {
  const auto found = std::find_if(kNames.begin(), kNames.end(), [&](const auto& known) { return known.first == name; });
  TORCH_CHECK_VALUE(found != kNames.end(), "learning rate schedule '", name,
                    "' is not known: ", c10::Join(", ", lr_schedule_names()));
  return found->second;
}

bool follows_metric(LrScheduleKind kind) { return kind == kReduceLrOnPlateau || kind == kGreedy; }

bool depends_on_total_steps(LrScheduleKind kind, bool has_warmup) {
  const bool goes_by_steps_done =
      kind == kConstant || kind == kConstantWithWarmup || kind == kInverseSqrt || follows_metric(kind);
  return has_warmup || !goes_by_steps_done;
}

double LrSchedule::factor(int64_t step) const {
  if (follows_metric(kind)) {
    return 1;
  }
  if (step < warmup_steps) {
    return warmup_factor(*this, step);
  }
  const double progress = ratio(step - warmup_steps, total_steps - warmup_steps);
  const double waves = num_cycles.value_or(kHalfWave), restarts = num_cycles.value_or(1);
  switch (kind) {
    case kConstant:
    case kConstantWithWarmup:
    case kReduceLrOnPlateau:
    case kGreedy: return 1;
    case kLinear: return std::max(0.0, ratio(total_steps - step, total_steps - warmup_steps));
    case kCosine: return std::max(0.0, cosine(waves, progress));
    case kCosineWithRestarts: return progress >= 1 ? 0 : cosine(kHalfWave, std::fmod(restarts * progress, 1.0));
    case kPolynomial: return polynomial(*this, progress);
    case kInverseSqrt: return inverse_sqrt(*this, step);
    case kCosineWithMinLr: return above_minimum(cosine(waves, progress), min_lr_ratio);
    case kCosineWarmupWithMinLr:
      return above_minimum(cosine(waves, ratio(step - warmup_steps + 1, total_steps - warmup_steps)), min_lr_ratio);
    case kWarmupStableDecay: return stable_decay(*this, step);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown learning rate schedule");
}

}  // namespace mezzo
