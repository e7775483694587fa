#include "scaling/loss_scale.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "memory/device_copy.h"

namespace mezzo {
namespace {

constexpr const char* kHysteresisTracker = "_hysteresis_tracker";
constexpr int64_t kMostCounted = std::numeric_limits<int32_t>::max();

void check_growth_factor(double growth_factor) {
  TORCH_CHECK_VALUE(std::isfinite(growth_factor) && growth_factor > 1.0,
                    "GradScaler: growth_factor must be finite and > 1, got ", growth_factor, ".");
}

void check_backoff_factor(double backoff_factor) {
  TORCH_CHECK_VALUE(backoff_factor > 0.0 && backoff_factor < 1.0,
                    "GradScaler: backoff_factor must be between 0 and 1, got ", backoff_factor,
                    ". For a scale that stays as it is, set the option static_scale.");
}

void check_growth_interval(int64_t growth_interval) {
  TORCH_CHECK_VALUE(growth_interval >= 1 && growth_interval <= kMostCounted,
                    "GradScaler: growth_interval must be between 1 and ", kMostCounted, ", got ", growth_interval,
                    ". For a scale that stays as it is, set the option static_scale.");
}

void check_hysteresis(const LossScaleRules& rules) {
  TORCH_CHECK_VALUE(rules.hysteresis >= 1 && rules.hysteresis <= kMostCounted,
                    "GradScaler: hysteresis must be between 1, which backs off at every overflow, and ", kMostCounted,
                    ", got ", rules.hysteresis, ".");
  TORCH_CHECK_VALUE(rules.hysteresis == 1 || !rules.reproduce_pytorch, "GradScaler: hysteresis is ", rules.hysteresis,
                    ", but PyTorch has none. Set it to 1, or reproduce_pytorch to false.");
}

const c10::Scalar& entry(const LossScale::StateDict& state_dict, const char* key) {
  const auto found = state_dict.find(key);
  TORCH_CHECK_VALUE(found != state_dict.end(), "GradScaler: the state_dict has no entry \"", key,
                    "\". Pass one that GradScaler's state_dict() returned.");
  return found->second;
}

int64_t integer_entry(const LossScale::StateDict& state_dict, const char* key) {
  const c10::Scalar& value = entry(state_dict, key);
  TORCH_CHECK_VALUE(value.isIntegral(/*includeBool=*/false), "GradScaler: entry \"", key,
                    "\" of the state_dict must be an integer, got ", value, ".");
  return value.toLong();
}

int64_t counter_entry(const LossScale::StateDict& state_dict, const char* key) {
  const int64_t value = integer_entry(state_dict, key);
  TORCH_CHECK_VALUE(value >= 0 && value <= kMostCounted, "GradScaler: entry \"", key,
                    "\" of the state_dict must be between 0 and ", kMostCounted, ", got ", value, ".");
  return value;
}

double real_entry(const LossScale::StateDict& state_dict, const char* key) {
  const c10::Scalar& value = entry(state_dict, key);
  TORCH_CHECK_VALUE(value.isFloatingPoint() || value.isIntegral(/*includeBool=*/false), "GradScaler: entry \"", key,
                    "\" of the state_dict must be a real number, got ", value, ".");
  return value.toDouble();
}

}  // namespace

LossScale::LossScale(const LossScaleRules& rules) : rules_(rules), init_hysteresis_tracker_(rules.hysteresis) {
  TORCH_CHECK_VALUE(rules.min_scale >= 0.0 && rules.min_scale <= rules.max_scale &&
                        rules.max_scale <= std::numeric_limits<float>::max(),
                    "GradScaler: min_scale and max_scale must satisfy 0 <= min_scale <= max_scale <= ",
                    std::numeric_limits<float>::max(), ", got ", rules.min_scale, " and ", rules.max_scale, ".");
  checked("init_scale", rules.init_scale);
  check_growth_factor(rules.growth_factor);
  check_backoff_factor(rules.backoff_factor);
  check_growth_interval(rules.growth_interval);
  check_hysteresis(rules);
}

double LossScale::checked(const char* what, double value) const {
  const auto as_float = static_cast<float>(value);
  TORCH_CHECK_VALUE(std::isfinite(as_float) && as_float > 0.0f, "GradScaler: ", what,
                    " must be positive and finite in float32, got ", value, ".");
  TORCH_CHECK_VALUE(rules_.reproduce_pytorch || (value >= rules_.min_scale && value <= rules_.max_scale),
                    "GradScaler: ", what, " must be between min_scale ", rules_.min_scale, " and max_scale ",
                    rules_.max_scale, ", got ", value, ".");
  return value;
}

void LossScale::create(c10::Device device) {
  const auto number = at::TensorOptions(device).dtype(at::kFloat);
  scale_ = at::empty({}, number);
  counts_ = at::zeros({kernels::kNumLossScaleCounts}, number.dtype(at::kInt));
  write_initial_state();
}

void LossScale::write_initial_state() {
  scale_.fill_(rules_.init_scale);
  counts_[kernels::kGrowthTracker].fill_(init_growth_tracker_);
  counts_[kernels::kHysteresisTracker].fill_(init_hysteresis_tracker_);
  counts_[kernels::kSkipsInARow].zero_();
}

double LossScale::value() const { return exists() ? scale_.item<double>() : rules_.init_scale; }

int64_t LossScale::count(kernels::LossScaleCount which) const { return counts_[which].item<int64_t>(); }

int64_t LossScale::growth_tracker() const { return exists() ? count(kernels::kGrowthTracker) : init_growth_tracker_; }

int64_t LossScale::skipped() const { return exists() ? count(kernels::kSkipped) : 0; }

void LossScale::update(const at::Tensor& found_inf) {
  const c10::NoGradGuard no_grad;
  kernels::update_loss_scale({.scale = scale_, .counts = counts_}, found_inf, rules_);
}

void LossScale::set(double scale) { scale_.fill_(scale); }

void LossScale::set(const at::Tensor& scale) {
  const c10::NoGradGuard no_grad;
  scale_.copy_(copy_to(scale.reshape({}), scale_.device()));
  if (!rules_.reproduce_pytorch) {
    scale_.clamp_(rules_.min_scale, rules_.max_scale);
  }
}

int64_t LossScale::skips_in_a_row(const at::Tensor& found_inf) const {
  return at::where(found_inf != 0, counts_[kernels::kSkipsInARow] + 1, 0).item<int64_t>();
}

void LossScale::set_growth_factor(double growth_factor) {
  check_growth_factor(growth_factor);
  rules_.growth_factor = growth_factor;
}

void LossScale::set_backoff_factor(double backoff_factor) {
  check_backoff_factor(backoff_factor);
  rules_.backoff_factor = backoff_factor;
}

void LossScale::set_growth_interval(int64_t growth_interval) {
  check_growth_interval(growth_interval);
  rules_.growth_interval = growth_interval;
}

LossScale::StateDict LossScale::state_dict() const {
  StateDict state{{"scale", value()},
                  {"growth_factor", rules_.growth_factor},
                  {"backoff_factor", rules_.backoff_factor},
                  {"growth_interval", rules_.growth_interval},
                  {"_growth_tracker", growth_tracker()}};
  if (rules_.hysteresis > 1) {
    state[kHysteresisTracker] = exists() ? count(kernels::kHysteresisTracker) : init_hysteresis_tracker_;
  }
  return state;
}

void LossScale::load_state_dict(const StateDict& state_dict) {
  LossScaleRules loaded = rules_;
  loaded.init_scale = checked("entry \"scale\" of the state_dict", real_entry(state_dict, "scale"));
  loaded.growth_factor = real_entry(state_dict, "growth_factor");
  loaded.backoff_factor = real_entry(state_dict, "backoff_factor");
  loaded.growth_interval = integer_entry(state_dict, "growth_interval");
  const int64_t growth_tracker = counter_entry(state_dict, "_growth_tracker");
  const int64_t hysteresis_tracker =
      state_dict.count(kHysteresisTracker) > 0 ? counter_entry(state_dict, kHysteresisTracker) : rules_.hysteresis;
  check_growth_factor(loaded.growth_factor);
  check_backoff_factor(loaded.backoff_factor);
  check_growth_interval(loaded.growth_interval);

  rules_ = loaded;
  init_growth_tracker_ = growth_tracker;
  init_hysteresis_tracker_ = std::min(hysteresis_tracker, rules_.hysteresis);
  if (exists()) {
    write_initial_state();
  }
}

}  // namespace mezzo
