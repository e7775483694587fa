#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>

#include "mezzo/optim/lr_schedule.h"
#include "mezzo/optim/optimizer.h"

namespace mezzo {

/// Keeps an optimizer's learning rate at what a schedule says, step by step, as the classes of
/// torch.optim.lr_scheduler do.
///
/// @code
/// mezzo::AdamW optimizer(*model, mezzo::AdamWOptions().lr(3e-5));
/// mezzo::LrSchedule linear;
/// linear.kind = mezzo::LrScheduleKind::kLinear;
/// linear.warmup_steps = 100;
/// linear.total_steps = 1000;
/// mezzo::LrScheduler scheduler(optimizer, linear);
/// // in the loop; a skipped step does not advance it:
/// if (scaler.step(optimizer).stepped()) scheduler.step();
/// @endcode
///
/// To go on with a run, make it of the optimizer as at the run's start, then `torch::load` both.
/// Holds a reference to the optimizer. Where its learning rate is a tensor, the scheduler writes to
/// that; making a scheduler and asking for the last learning rate sync then. Not thread-safe; else
/// never syncs. DeviceLrSchedule is the one that needs no answer about skipped steps.
class LrScheduler {
 public:
  /// The optimizer's learning rate is the one that factors of 1 give; the first is set at once.
  /// @throws c10::ValueError  for a kind that follows a metric (MetricSchedule), or that needs
  ///     `total_steps` and has none, or whose first factor is not finite.
  LrScheduler(Optimizer& optimizer, const LrSchedule& schedule);

  /// Another step was taken.
  /// @throws c10::ValueError  if the schedule's factor is negative or not finite
  void step();

  /// Taken so far.
  int64_t steps() const { return steps_; }
  double get_last_lr() const { return optimizer_.lr(); }

 private:
  friend torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive&, const LrScheduler&);
  friend torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive&, LrScheduler&);
  void set(int64_t steps);

  Optimizer& optimizer_;
  LrSchedule schedule_;
  double base_lr_;
  int64_t steps_ = 0;
};

/// For `torch::save` and `torch::load`: steps and the learning rate they are
/// factors of; not the schedule.
/// @throws c10::ValueError  for what is no scheduler's archive; nothing has changed then.
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const LrScheduler& scheduler);
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, LrScheduler& scheduler);

}  // namespace mezzo
