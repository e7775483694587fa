#include "mezzo/optim/metric_schedule.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "optim/check_number.h"

namespace mezzo {

MetricScheduleOptions MetricScheduleOptions::greedy() {
  return MetricScheduleOptions().factor(0.95).threshold(1e-6).relative_threshold(false).min_lr(1e-3);
}

MetricSchedule::MetricSchedule(LrScheduleKind kind, double lr, MetricScheduleOptions options)
    : kind_(kind), first_lr_(lr), options_(options), state_(initial_state()) {
  TORCH_CHECK_VALUE(follows_metric(kind),
                    "MetricSchedule: expected kReduceLrOnPlateau or kGreedy, the others are LrSchedule's");
  check_not_negative("MetricSchedule: lr", lr);
  TORCH_CHECK_VALUE(options.factor() > 0 && options.factor() < 1, "MetricSchedule: factor must be in (0, 1), got ",
                    options.factor());
  TORCH_CHECK_VALUE(options.patience() >= 0, "MetricSchedule: patience must not be negative, got ", options.patience());
}

MetricSchedule::State MetricSchedule::initial_state() const {
  const double worst = std::numeric_limits<double>::infinity();
  return {.lr = first_lr_, .best = options_.maximize() ? -worst : worst, .resets_in = options_.reset_after()};
}

void MetricSchedule::observe(double metric) {
  kind_ == LrScheduleKind::kGreedy ? observe_greedy(metric) : observe_plateau(metric);
}

bool MetricSchedule::improves(double metric) const {
  const double sign = options_.maximize() ? 1 : -1, best = state_.best;
  const double bar =
      options_.relative_threshold() ? best * (1 + sign * options_.threshold()) : best + sign * options_.threshold();
  return options_.maximize() ? metric > bar : metric < bar;
}

void MetricSchedule::observe_plateau(double metric) {
  if (improves(metric)) {
    state_.best = metric;
    state_.bad = 0;
  } else {
    ++state_.bad;
  }
  if (state_.cooldown_left > 0) {
    --state_.cooldown_left;
    state_.bad = 0;
  }
  if (state_.bad > options_.patience()) {
    lower();
    state_.cooldown_left = options_.cooldown();
    state_.bad = 0;
  }
}

void MetricSchedule::observe_greedy(double metric) {
  if (state_.cooldown_left > 0 || state_.warmup_left > 0) {
    --(state_.cooldown_left > 0 ? state_.cooldown_left : state_.warmup_left);
    state_.bad = state_.good = 0;
    return;
  }
  const bool better = improves(metric);
  state_.best = better ? metric : state_.best;
  state_.good = better ? state_.good + 1 : 0;
  state_.bad = better ? 0 : state_.bad + 1;
  if (state_.good > options_.patience()) {
    raise();
    state_.warmup_left = options_.warmup();
    state_.good = 0;
  } else if (state_.bad > options_.patience()) {
    lower_or_reset();
    state_.cooldown_left = options_.cooldown();
    state_.bad = 0;
  }
}

void MetricSchedule::lower() {
  const double lower = std::max(state_.lr * options_.factor(), options_.min_lr());
  if (state_.lr - lower > options_.eps()) {
    state_.lr = lower;
  }
}

void MetricSchedule::lower_or_reset() {
  lower();
  if (state_.lr <= options_.min_lr() && --state_.resets_in <= 0) {
    state_ = initial_state();
  }
}

void MetricSchedule::raise() {
  const double higher = std::min(state_.lr / options_.factor(), options_.max_lr());
  if (higher - state_.lr > options_.eps()) {
    state_.lr = higher;
  }
  state_.resets_in = options_.reset_after();
}

std::map<std::string, double> MetricSchedule::state_dict() const {
  std::map<std::string, double> entries = {{"lr", state_.lr},
                                           {"bad", static_cast<double>(state_.bad)},
                                           {"good", static_cast<double>(state_.good)},
                                           {"cooldown_left", static_cast<double>(state_.cooldown_left)},
                                           {"warmup_left", static_cast<double>(state_.warmup_left)},
                                           {"resets_in", static_cast<double>(state_.resets_in)}};
  if (std::isfinite(state_.best)) {
    entries["best"] = state_.best;
  }
  return entries;
}

void MetricSchedule::load_state_dict(const std::map<std::string, double>& entries) {
  const auto value = [&](const std::string& name) {
    const auto entry = entries.find(name);
    TORCH_CHECK_VALUE(entry != entries.end(), "MetricSchedule: the state to load has no entry ", name);
    return entry->second;
  };
  const auto count = [&](const std::string& name) {
    constexpr double kMost = 9007199254740992.0;  // 2^53: above it, doubles do not count
    const double number = value(name);
    TORCH_CHECK_VALUE(std::abs(number) < kMost && number == std::trunc(number), "MetricSchedule: entry ", name,
                      " of the state to load is ", number, ", expected a whole number");
    return static_cast<int64_t>(number);
  };
  State loaded = initial_state();
  loaded = {.lr = value("lr"),
            .best = entries.contains("best") ? entries.at("best") : loaded.best,
            .bad = count("bad"),
            .good = count("good"),
            .cooldown_left = count("cooldown_left"),
            .warmup_left = count("warmup_left"),
            .resets_in = count("resets_in")};
  check_not_negative("MetricSchedule: entry lr of the state to load", loaded.lr);
  state_ = loaded;
}

}  // namespace mezzo
