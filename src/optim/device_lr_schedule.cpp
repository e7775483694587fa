#include "mezzo/optim/device_lr_schedule.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/take.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "memory/device_copy.h"
#include "optim/check_number.h"

namespace mezzo {

DeviceLrSchedule::DeviceLrSchedule(const LrSchedule& schedule, double base_lr, int64_t num_steps, c10::Device device) {
  TORCH_CHECK_VALUE(!follows_metric(schedule.kind),
                    "DeviceLrSchedule: this kind of schedule follows a metric; use a MetricSchedule");
  check_not_negative("DeviceLrSchedule: base_lr", base_lr);
  TORCH_CHECK_VALUE(num_steps >= 1, "DeviceLrSchedule: num_steps must be at least 1, got ", num_steps);
  const auto table = at::empty({num_steps + 1}, at::kDouble);
  auto* rates = table.mutable_data_ptr<double>();
  for (int64_t step = 0; step <= num_steps; ++step) {
    rates[step] = base_lr * schedule.factor(step);
    TORCH_CHECK_VALUE(std::isfinite(rates[step]) && rates[step] >= 0,
                      "DeviceLrSchedule: the schedule's factor of step ", step,
                      " is negative or not finite; look at its numbers");
  }
  const c10::NoGradGuard no_grad;
  table_ = copy_to(table, device);
  steps_ = at::zeros({}, table_.options().dtype(at::kLong));
  lr_ = at::empty({}, table_.options());
  look_up();
}

void DeviceLrSchedule::advance(const at::Tensor& found_inf) {
  const c10::NoGradGuard no_grad;
  if (found_inf.defined()) {
    steps_.add_(copy_to(found_inf.reshape({}), steps_.device()) == 0);
  } else {
    steps_.add_(1);
  }
  look_up();
}

int64_t DeviceLrSchedule::steps() const { return steps_.item<int64_t>(); }

void DeviceLrSchedule::set_steps(int64_t steps) {
  TORCH_CHECK_VALUE(steps >= 0, "DeviceLrSchedule: there cannot be ", steps, " steps");
  const c10::NoGradGuard no_grad;
  steps_.fill_(steps);
  look_up();
}

void DeviceLrSchedule::look_up() { lr_.copy_(at::take(table_, steps_.clamp_max(table_.size(0) - 1))); }

}  // namespace mezzo
