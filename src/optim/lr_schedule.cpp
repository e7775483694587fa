#include "mezzo/optim/lr_schedule.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numbers>
#include <utility>

namespace mezzo {
namespace {

using Options = LrScheduleOptions;

/// From 1 at progress 0 along a cosine; to 0 at progress 1 if it is half a wave.
double cosine(double waves, double progress) { return 0.5 * (1 + std::cos(std::numbers::pi * waves * 2 * progress)); }

constexpr double kHalfWave = 0.5;

double waves(const Options& options) { return options.num_cycles.value_or(kHalfWave); }

double above_minimum(const Options& options, double factor) {
  return std::max(0.0, factor * (1 - options.min_lr_rate) + options.min_lr_rate);
}

double ratio(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
}

double linear_warmup(const Options& options, int64_t step) { return ratio(step, options.num_warmup_steps); }

double warmup_to_cosine(const Options& options, int64_t step) {
  const auto& first = options.warmup_lr_rate;
  return first ? *first + (1 - *first) * ratio(step, options.num_warmup_steps - 1)
               : ratio(step + 1, options.num_warmup_steps);
}

double warmup_to_stable(const Options& options, int64_t step) {
  const double progress = linear_warmup(options, step);
  if (options.warmup_type == "linear") return above_minimum(options, progress);
  return above_minimum(options, options.warmup_type == "cosine" ? 0.5 * (1 - std::cos(std::numbers::pi * progress))
                                                                : 1 - std::sqrt(1 - progress));
}

double stable_decay(const Options& options, int64_t step, double) {
  const int64_t decayed = step - (options.num_training_steps - options.num_decay_steps);
  if (decayed < 0) return 1;
  if (decayed >= options.num_decay_steps) return options.min_lr_rate;
  const double progress = ratio(decayed, options.num_decay_steps);
  if (options.decay_type == "linear") return above_minimum(options, 1 - progress);
  return above_minimum(options,
                       options.decay_type == "cosine" ? cosine(waves(options), progress) : 1 - std::sqrt(progress));
}

double constant(const Options&, int64_t, double) { return 1; }

double linear(const Options& options, int64_t step, double) {
  return std::max(0.0, ratio(options.num_training_steps - step, options.num_training_steps - options.num_warmup_steps));
}

double plain_cosine(const Options& options, int64_t, double progress) {
  return std::max(0.0, cosine(waves(options), progress));
}

double cosine_with_restarts(const Options& options, int64_t, double progress) {
  return progress >= 1 ? 0 : cosine(kHalfWave, std::fmod(options.num_cycles.value_or(1) * progress, 1.0));
}

double polynomial(const Options& options, int64_t, double progress) {
  const double remaining = std::pow(1 - std::min(1.0, progress), options.power);
  return remaining * (1 - options.min_lr_rate) + options.min_lr_rate;
}

double inverse_sqrt(const Options& options, int64_t step, double) {
  const int64_t warmup = options.num_warmup_steps, timescale = options.timescale.value_or(warmup > 0 ? warmup : 10'000);
  return 1 / std::sqrt(ratio(step + timescale - warmup, timescale));
}

double cosine_with_min_lr(const Options& options, int64_t, double progress) {
  return above_minimum(options, cosine(waves(options), progress));
}

double cosine_one_step_ahead(const Options& options, int64_t step, double) {
  const int64_t warmup = options.num_warmup_steps;
  return cosine_with_min_lr(options, step, ratio(step - warmup + 1, options.num_training_steps - warmup));
}

struct NamedSchedule {
  std::string_view name;
  bool is_endless;
  /// @param progress  share of the steps after the warmup
  double (*factor)(const Options& options, int64_t step, double progress);
  double (*warmup)(const Options& options, int64_t step) = linear_warmup;
};

constexpr std::array<NamedSchedule, 12> kSchedules = {{
    {"linear", false, linear},
    {"cosine", false, plain_cosine},
    {"cosine_with_restarts", false, cosine_with_restarts},
    {"polynomial", false, polynomial},
    {"constant", true, constant},
    {"constant_with_warmup", true, constant},
    {"inverse_sqrt", true, inverse_sqrt},
    {"reduce_lr_on_plateau", true, nullptr},
    {"cosine_with_min_lr", false, cosine_with_min_lr},
    {"cosine_warmup_with_min_lr", false, cosine_one_step_ahead, warmup_to_cosine},
    {"warmup_stable_decay", false, stable_decay, warmup_to_stable},
    {"greedy", true, nullptr},
}};

/// One that does not end with the caller's string.
std::string_view known_ramp(const char* option, std::string_view type) {
  constexpr std::array<std::string_view, 3> kRamps = {"linear", "cosine", "1-sqrt"};
  const auto* const found = std::ranges::find(kRamps, type);
  TORCH_CHECK_VALUE(found != kRamps.end(), "get_schedule: ", option, " '", type,
                    "' is not known. Pass linear, cosine or 1-sqrt.");
  return *found;
}

const NamedSchedule& find_schedule(std::string_view name) {
  const auto* const found = std::ranges::find(kSchedules, name, &NamedSchedule::name);
  TORCH_CHECK_VALUE(found != kSchedules.end(), "learning rate schedule '", name,
                    "' is not known: ", c10::Join(", ", lr_schedule_names()));
  return *found;
}

void check_sorted(const char* function, const std::vector<int64_t>& milestones) {
  TORCH_CHECK_VALUE(std::ranges::is_sorted(milestones), function, ": milestones must increase, got ",
                    c10::Join(", ", milestones), ".");
}

/// Of sorted milestones, how many are reached at `step`.
int64_t reached(const std::vector<int64_t>& milestones, int64_t step) {
  return std::distance(milestones.begin(), std::ranges::upper_bound(milestones, step));
}

}  // namespace

std::vector<std::string> lr_schedule_names() {
  std::vector<std::string> names;
  for (const NamedSchedule& schedule : kSchedules) {
    names.emplace_back(schedule.name);
  }
  return names;
}

bool follows_metric(std::string_view name) { return find_schedule(name).factor == nullptr; }

bool depends_on_total_steps(std::string_view name, bool has_warmup) {
  return has_warmup || !find_schedule(name).is_endless;
}

LrSchedule get_schedule(std::string_view name, LrScheduleOptions options) {
  const NamedSchedule& schedule = find_schedule(name);
  TORCH_CHECK_VALUE(schedule.is_endless || options.num_training_steps > 0, "get_schedule: '", name,
                    "' depends on the number of training steps. Set num_training_steps.");
  options.warmup_type = known_ramp("warmup_type", options.warmup_type);
  options.decay_type = known_ramp("decay_type", options.decay_type);
  if (schedule.factor == nullptr) return [](int64_t) { return 1.0; };
  return [options, &schedule](int64_t step) {
    const int64_t warmup = options.num_warmup_steps;
    if (step < warmup) return schedule.warmup(options, step);
    return schedule.factor(options, step, ratio(step - warmup, options.num_training_steps - warmup));
  };
}

LrSchedule step_lr(int64_t step_size, double gamma) {
  TORCH_CHECK_VALUE(step_size >= 1, "step_lr: step_size must be at least 1, got ", step_size, ".");
  return [=](int64_t step) { return std::pow(gamma, static_cast<double>(step / step_size)); };
}

LrSchedule multi_step_lr(std::vector<int64_t> milestones, double gamma) {
  check_sorted("multi_step_lr", milestones);
  return [milestones = std::move(milestones), gamma](int64_t step) {
    return std::pow(gamma, static_cast<double>(reached(milestones, step)));
  };
}

LrSchedule exponential_lr(double gamma) {
  return [gamma](int64_t step) { return std::pow(gamma, static_cast<double>(step)); };
}

LrSchedule sequential_lr(std::vector<LrSchedule> schedules, std::vector<int64_t> milestones) {
  check_sorted("sequential_lr", milestones);
  TORCH_CHECK_VALUE(schedules.size() == milestones.size() + 1,
                    "sequential_lr: expected a milestone between any two of ", schedules.size(), " schedules, got ",
                    milestones.size(), " milestones.");
  return [schedules = std::move(schedules), milestones = std::move(milestones)](int64_t step) {
    const auto index = static_cast<size_t>(reached(milestones, step));
    return schedules[index](index == 0 ? step : step - milestones[index - 1]);
  };
}

LrSchedule one_cycle_lr(const OneCycleLROptions& options) {
  TORCH_CHECK_VALUE(options.total_steps > 0, "one_cycle_lr: total_steps must be above 0, got ", options.total_steps,
                    ".");
  TORCH_CHECK_VALUE(options.pct_start >= 0 && options.pct_start <= 1, "one_cycle_lr: pct_start must be in [0, 1], got ",
                    options.pct_start, ".");
  const bool is_linear = options.anneal_strategy == "linear";
  TORCH_CHECK_VALUE(is_linear || options.anneal_strategy == "cos", "one_cycle_lr: anneal_strategy must be cos or ",
                    "linear, got '", options.anneal_strategy, "'.");
  const auto total = static_cast<double>(options.total_steps);
  const double first = 1 / options.div_factor, least = first / options.final_div_factor;
  // Where each phase ends, and with which factor.
  std::vector<std::pair<double, double>> phases{{options.pct_start * total - 1, 1}};
  if (options.three_phase) phases.emplace_back(2 * options.pct_start * total - 2, first);
  phases.emplace_back(total - 1, least);
  return [=](int64_t step) {
    double begin = 0, from = first;
    const double now = std::min(static_cast<double>(step), total - 1);
    for (const auto& [end, to] : phases) {
      if (now <= end) {
        const double progress = end > begin ? (now - begin) / (end - begin) : 1;
        return is_linear ? from + (to - from) * progress : to + (from - to) * cosine(kHalfWave, progress);
      }
      begin = end;
      from = to;
    }
    return least;
  };
}

}  // namespace mezzo
