#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "mezzo/optim/lr_schedule.h"

namespace mezzo {

/// A learning rate that lies on a device and follows a schedule there: a table of all of the run's,
/// and a count of the steps that were taken. A step that was skipped does not advance it, and
/// nobody has to wait to hear of that. All that changes is changed in place, so that a captured
/// graph may hold it.
///
/// @code
/// mezzo::AdamW optimizer(*model, mezzo::AdamWOptions().max_grad_norm(1.0));
/// mezzo::DeviceLrSchedule schedule(linear, /*base_lr=*/3e-5, linear.total_steps, torch::kCUDA);
/// optimizer.set_lr(schedule.lr());
/// // in the loop, a part of the step:
/// scaler.step(optimizer);
/// schedule.advance(optimizer.found_inf());
/// @endcode
///
/// Not thread-safe. Never syncs, unless it says so.
/// @see LrScheduler  for a learning rate that is a number: the same numbers, to the bit.
class DeviceLrSchedule {
 public:
  /// @param base_lr  the one that factors of 1 give
  /// @param num_steps  of the run, at least 1: after so many, the learning rate stays as it is
  /// @throws c10::ValueError  for a kind that follows a metric (MetricSchedule), for a negative
  ///     `base_lr`, for no steps, and for factors that are negative or not finite.
  DeviceLrSchedule(const LrSchedule& schedule, double base_lr, int64_t num_steps, c10::Device device);
  /// A copy would share the count of steps.
  DeviceLrSchedule(const DeviceLrSchedule&) = delete;
  DeviceLrSchedule& operator=(const DeviceLrSchedule&) = delete;
  DeviceLrSchedule(DeviceLrSchedule&&) noexcept = default;
  DeviceLrSchedule& operator=(DeviceLrSchedule&&) noexcept = default;

  /// That of the step to come: 0-dim, float64; always the same tensor.
  const at::Tensor& lr() const { return lr_; }

  /// Another step was taken, unless `found_inf` says that it was skipped: 1 or 0, one number of any
  /// dtype and device; undefined: it was taken.
  void advance(const at::Tensor& found_inf = {});

  /// Taken so far. Syncs.
  int64_t steps() const;
  /// Goes on from there, as a run that is resumed.
  /// @throws c10::ValueError  for a negative number.
  void set_steps(int64_t steps);

 private:
  void look_up();

  at::Tensor table_;  // [num_steps + 1]
  at::Tensor steps_, lr_;
};

}  // namespace mezzo
