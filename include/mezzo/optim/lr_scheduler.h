#pragma once

#include <cstdint>

#include "mezzo/optim/lr_schedule.h"
#include "mezzo/optim/optimizer.h"

namespace mezzo {

/// Keeps an optimizer's learning rate at what a schedule says, step by step, as the classes of torch.optim.lr_scheduler
/// do.
///
/// @code
/// mezzo::AdamW optimizer(*model, mezzo::AdamWOptions().lr(3e-5));
/// mezzo::LrScheduler scheduler(optimizer, {.kind = mezzo::LrScheduleKind::kLinear, .warmup_steps = 100, .total_steps =
/// 1000}); … if (scaler.step(optimizer).stepped()) scheduler.step();   // a skipped step does not advance it
/// @endcode
///
/// Holds a reference to the optimizer. Not thread-safe; never syncs the device.
class LrScheduler {
 public:
  /// The optimizer's learning rate is the one that factors of 1 give; the first is set at once.
  /// @param steps  taken already, where a run goes on: from `steps()` of then.
  /// @throws c10::ValueError  for a kind that follows a metric (MetricSchedule).
  LrScheduler(Optimizer& optimizer, LrSchedule schedule, int64_t steps = 0);

  /// Another step was taken.
  void step();

  int64_t steps() const { return steps_; }
  double get_last_lr() const { return optimizer_.lr(); }

 private:
  void set();

  Optimizer& optimizer_;
  LrSchedule schedule_;
  double base_lr_;
  int64_t steps_;
};

}  // namespace mezzo
