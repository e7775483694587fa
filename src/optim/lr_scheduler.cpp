#include "mezzo/optim/lr_scheduler.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/take.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/device_scalars.h"
#include "memory/device_copy.h"
#include "mezzo/optim/detail/amp_scaling_optimizer.h"
#include "optim/check_number.h"

namespace mezzo {
namespace {

std::vector<double> multiplied(std::vector<double> base_lrs, double factor) {
  for (double& lr : base_lrs) {
    lr *= factor;
  }
  return base_lrs;
}

/// @throws c10::ValueError  for what no count of such entries is
int64_t count_of(const std::map<std::string, double>& state, const std::string& name) {
  const auto entry = state.find(name);
  TORCH_CHECK_VALUE(entry != state.end(), "ReduceLROnPlateau: the state to load has no entry ", name, ".");
  constexpr double kMost = 9007199254740992.0;  // 2^53: above it, doubles do not count
  const double number = entry->second;
  TORCH_CHECK_VALUE(std::abs(number) < kMost && number == std::trunc(number), "ReduceLROnPlateau: entry ", name,
                    " of the state to load is ", number, ", expected a whole number.");
  return static_cast<int64_t>(number);
}

/// Undefined for an optimizer whose learning rates are numbers.
at::Tensor lr_tensor_of(const torch::optim::Optimizer& optimizer) {
  const auto* const ours = dynamic_cast<const detail::AmpScalingOptimizer*>(&optimizer);
  return ours != nullptr ? ours->lr_tensor() : at::Tensor();
}

/// Of the learning rate of a group.
std::string lr_name(size_t group) { return group == 0 ? "lr" : "lr." + std::to_string(group); }

}  // namespace

LearningRates::LearningRates(torch::optim::Optimizer& optimizer)
    : get_([&optimizer] {
        if (const auto lr = lr_tensor_of(optimizer); lr.defined()) {
          return LearningRates(lr).get();
        }
        std::vector<double> lrs;
        for (const auto& group : optimizer.param_groups()) {
          lrs.push_back(group.options().get_lr());
        }
        return lrs;
      }),
      set_([&optimizer](const std::vector<double>& lrs) {
        if (const auto lr = lr_tensor_of(optimizer); lr.defined()) {
          return LearningRates(lr).set(lrs);
        }
        for (size_t i = 0; i < lrs.size(); ++i) {
          optimizer.param_groups().at(i).options().set_lr(lrs[i]);
        }
      }) {}

LearningRates::LearningRates(at::Tensor lr)
    : get_([lr] { return std::vector<double>{lr.item<double>()}; }), set_([lr](const std::vector<double>& lrs) {
        const c10::NoGradGuard no_grad;
        lr.fill_(lrs.front());
      }) {
  TORCH_CHECK_VALUE(lr.dim() == 0 && lr.is_floating_point(),
                    "LearningRates: a learning rate must be a floating tensor of 0 dimensions, got ", lr.dim(),
                    " dimensions of ", lr.scalar_type(), ".");
}

void LearningRates::set(const std::vector<double>& lrs) const {
  for (const double lr : lrs) {
    check_not_negative("LearningRates: a learning rate", lr);
  }
  set_(lrs);
}

LRScheduler::LRScheduler(LearningRates lrs, LrSchedule schedule)
    : lrs_(std::move(lrs)), schedule_(std::move(schedule)), base_lrs_(lrs_.get()) {
  check_not_negative("LRScheduler: the factor of step 1", schedule_(1));
  set_steps(0);
}

LRScheduler::LRScheduler(const at::Tensor& lr, const LrSchedule& schedule, int64_t num_steps)
    : lrs_(lr), base_lrs_(lrs_.get()), lr_(lr) {
  check_lr_device(lr.device());
  TORCH_CHECK_VALUE(num_steps >= 1, "LRScheduler: num_steps must be at least 1, got ", num_steps, ".");
  const auto factors = at::empty({num_steps + 1}, at::kDouble);
  for (int64_t step = 0; step <= num_steps; ++step) {
    const double factor = schedule(step);
    check_not_negative("LRScheduler: a factor", factor);
    factors.mutable_data_ptr<double>()[step] = factor;
  }
  const c10::NoGradGuard no_grad;
  factors_ = copy_to(factors, lr.device());
  base_lr_ = at::full({}, base_lrs_.front(), factors_.options());
  device_steps_ = at::zeros({}, factors_.options().dtype(at::kLong));
  look_up();
}

void LRScheduler::look_up() {
  lr_.copy_(at::take(factors_, device_steps_.clamp_max(factors_.size(0) - 1)).mul_(base_lr_));
}

void LRScheduler::step(const at::Tensor& found_inf) {
  const c10::NoGradGuard no_grad;
  if (lr_.defined()) {
    if (found_inf.defined()) {
      device_steps_.add_(copy_to(found_inf.reshape({}), device_steps_.device()) == 0);
    } else {
      device_steps_.add_(1);
    }
    look_up();
  } else if (!found_inf.defined() || found_inf.item<double>() == 0) {
    set_steps(steps_ + 1);
  }
}

int64_t LRScheduler::steps() const { return lr_.defined() ? device_steps_.item<int64_t>() : steps_; }

void LRScheduler::set_steps(int64_t steps) {
  TORCH_CHECK_VALUE(steps >= 0, "LRScheduler: the number of steps must be at least 0, got ", steps, ".");
  const c10::NoGradGuard no_grad;
  if (lr_.defined()) {
    device_steps_.fill_(steps);
    look_up();
  } else {
    lrs_.set(multiplied(base_lrs_, schedule_(steps)));
    steps_ = steps;
  }
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const LRScheduler& scheduler) {
  archive.write("base_lrs", c10::IValue(scheduler.base_lrs_));
  archive.write("steps", c10::IValue(scheduler.steps()));
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, LRScheduler& scheduler) {
  c10::IValue base_lrs, steps;
  const bool is_one =
      archive.try_read("base_lrs", base_lrs) && archive.try_read("steps", steps) && base_lrs.isDoubleList() &&
      steps.isInt() && steps.toInt() >= 0 &&
      std::ranges::all_of(base_lrs.toDoubleVector(), [](double lr) { return std::isfinite(lr) && lr >= 0; });
  TORCH_CHECK_VALUE(is_one,
                    "LRScheduler: the archive to load is not of a scheduler. Pass what torch::save made of one.");
  auto loaded = base_lrs.toDoubleVector();
  TORCH_CHECK_VALUE(loaded.size() == scheduler.base_lrs_.size(), "LRScheduler: the archive to load has ", loaded.size(),
                    " parameter groups, this scheduler has ", scheduler.base_lrs_.size(), ".");
  std::swap(scheduler.base_lrs_, loaded);
  if (scheduler.lr_.defined()) {
    scheduler.base_lr_.fill_(scheduler.base_lrs_.front());
  }
  scheduler.set_steps(steps.toInt());
  return archive;
}

ReduceLROnPlateau::ReduceLROnPlateau(LearningRates lrs, const ReduceLROnPlateauOptions& options)
    : lrs_(std::move(lrs)), options_(options) {
  const auto is_one_of = [](std::string_view value, std::string_view a, std::string_view b) {
    return value == a || value == b;
  };
  TORCH_CHECK_VALUE(is_one_of(options.mode, "min", "max"), "ReduceLROnPlateau: mode must be min or max, got '",
                    options.mode, "'.");
  TORCH_CHECK_VALUE(is_one_of(options.threshold_mode, "rel", "abs"),
                    "ReduceLROnPlateau: threshold_mode must be rel or abs, got '", options.threshold_mode, "'.");
  // The caller's string may end before this does.
  options_.mode = options.mode == "max" ? "max" : "min";
  options_.threshold_mode = options.threshold_mode == "abs" ? "abs" : "rel";
  TORCH_CHECK_VALUE(options.factor > 0 && options.factor < 1, "ReduceLROnPlateau: factor must be in (0, 1), got ",
                    options.factor, ".");
  TORCH_CHECK_VALUE(options.patience >= 0, "ReduceLROnPlateau: patience must be at least 0, got ", options.patience,
                    ".");
  lrs_.set(lrs_.get());  // refuses invalid learning rates
  state_ = {.best = worst()};
}

double ReduceLROnPlateau::worst() const {
  return options_.mode == "max" ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
}

bool ReduceLROnPlateau::improves(double metric) const {
  const bool maximize = options_.mode == "max";
  const double change = maximize ? options_.threshold : -options_.threshold;
  const double bar = options_.threshold_mode == "rel" ? state_.best * (1 + change) : state_.best + change;
  return maximize ? metric > bar : metric < bar;
}

void ReduceLROnPlateau::lower() const {
  auto lrs = lrs_.get();
  for (double& lr : lrs) {
    const double next = std::max(lr * options_.factor, options_.min_lr);
    lr = lr - next > options_.eps ? next : lr;
  }
  lrs_.set(lrs);
}

void GreedyLR::raise() const {
  auto lrs = lrs_.get();
  for (double& lr : lrs) {
    const double next = std::min(lr / options_.factor, greedy_.max_lr);
    lr = next - lr > options_.eps ? next : lr;
  }
  lrs_.set(lrs);
}

void ReduceLROnPlateau::step(double metrics) {
  if (improves(metrics)) {
    state_.best = metrics;
    state_.bad = 0;
  } else {
    ++state_.bad;
  }
  if (state_.cooldown_left > 0) {
    --state_.cooldown_left;
    state_.bad = 0;
  }
  if (state_.bad > options_.patience) {
    lower();
    state_.cooldown_left = options_.cooldown;
    state_.bad = 0;
  }
}

GreedyLR::GreedyLR(LearningRates lrs, const GreedyLROptions& options)
    : ReduceLROnPlateau(std::move(lrs), options), greedy_(options), initial_lrs_(lrs_.get()) {
  state_.resets_in = greedy_.reset_start;
}

void GreedyLR::step(double metrics) {
  if (state_.cooldown_left > 0 || state_.warmup_left > 0) {
    --(state_.cooldown_left > 0 ? state_.cooldown_left : state_.warmup_left);
    state_.bad = state_.good = 0;
    return;
  }
  const bool better = improves(metrics);
  state_.best = better ? metrics : state_.best;
  state_.good = better ? state_.good + 1 : 0;
  state_.bad = better ? 0 : state_.bad + 1;
  if (state_.good > options_.patience) {
    raise();
    state_.resets_in = greedy_.reset_start;
    state_.warmup_left = greedy_.warmup;
    state_.good = 0;
  } else if (state_.bad > options_.patience) {
    lower();
    const bool is_lowest = std::ranges::all_of(lrs_.get(), [&](double lr) { return lr <= options_.min_lr; });
    if (is_lowest && --state_.resets_in <= 0) {
      lrs_.set(initial_lrs_);
      state_ = {.best = worst(), .resets_in = greedy_.reset_start};
    }
    state_.cooldown_left = options_.cooldown;
    state_.bad = 0;
  }
}

std::map<std::string, double> ReduceLROnPlateau::state_dict() const {
  std::map<std::string, double> entries = {{"bad", static_cast<double>(state_.bad)},
                                           {"good", static_cast<double>(state_.good)},
                                           {"cooldown_left", static_cast<double>(state_.cooldown_left)},
                                           {"warmup_left", static_cast<double>(state_.warmup_left)},
                                           {"resets_in", static_cast<double>(state_.resets_in)}};
  if (std::isfinite(state_.best)) {
    entries["best"] = state_.best;
  }
  const auto lrs = lrs_.get();
  for (size_t i = 0; i < lrs.size(); ++i) {
    entries[lr_name(i)] = lrs[i];
  }
  return entries;
}

void ReduceLROnPlateau::load_state_dict(const std::map<std::string, double>& entries) {
  auto lrs = lrs_.get();
  for (size_t i = 0; i < lrs.size(); ++i) {
    const auto entry = entries.find(lr_name(i));
    TORCH_CHECK_VALUE(entry != entries.end(), "ReduceLROnPlateau: the state to load has no entry ", lr_name(i), ".");
    lrs[i] = entry->second;
  }
  const State loaded = {.best = entries.contains("best") ? entries.at("best") : worst(),
                        .bad = count_of(entries, "bad"),
                        .good = count_of(entries, "good"),
                        .cooldown_left = count_of(entries, "cooldown_left"),
                        .warmup_left = count_of(entries, "warmup_left"),
                        .resets_in = count_of(entries, "resets_in")};
  lrs_.set(lrs);
  state_ = loaded;
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const ReduceLROnPlateau& scheduler) {
  for (const auto& [name, value] : scheduler.state_dict()) {
    archive.write(name, c10::IValue(value));
  }
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, ReduceLROnPlateau& scheduler) {
  std::map<std::string, double> state;
  for (const std::string& name : archive.keys()) {
    c10::IValue value;
    if (archive.try_read(name, value) && value.isDouble()) {
      state[name] = value.toDouble();
    }
  }
  scheduler.load_state_dict(state);
  return archive;
}

}  // namespace mezzo
