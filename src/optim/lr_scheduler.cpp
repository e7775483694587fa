#include "mezzo/optim/lr_scheduler.h"

#include <c10/util/Exception.h>
#include <torch/serialize/archive.h>

#include <cmath>

namespace mezzo {
namespace {

bool is_endless(LrScheduleKind kind) {
  return kind == LrScheduleKind::kConstant || kind == LrScheduleKind::kConstantWithWarmup ||
         kind == LrScheduleKind::kInverseSqrt;
}

}  // namespace

LrScheduler::LrScheduler(Optimizer& optimizer, const LrSchedule& schedule)
    : optimizer_(optimizer), schedule_(schedule), base_lr_(optimizer.lr()) {
  TORCH_CHECK_VALUE(!follows_metric(schedule.kind),
                    "LrScheduler: this kind of schedule follows a metric; use a MetricSchedule");
  TORCH_CHECK_VALUE(schedule.total_steps > 0 || is_endless(schedule.kind),
                    "LrScheduler: this kind of schedule needs to know the steps of the run; set total_steps");
  TORCH_CHECK_VALUE(std::isfinite(schedule.factor(0)) && std::isfinite(schedule.factor(1)),
                    "LrScheduler: the schedule's factors are not finite; look at its numbers");
  set(0);
}

void LrScheduler::step() { set(steps_ + 1); }

void LrScheduler::set(int64_t steps) {
  optimizer_.set_lr(base_lr_ * schedule_.factor(steps));
  steps_ = steps;
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const LrScheduler& scheduler) {
  archive.write("base_lr", c10::IValue(scheduler.base_lr_));
  archive.write("steps", c10::IValue(scheduler.steps_));
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, LrScheduler& scheduler) {
  c10::IValue base_lr, steps;
  const bool is_one = archive.try_read("base_lr", base_lr) && archive.try_read("steps", steps) && base_lr.isDouble() &&
                      steps.isInt() && std::isfinite(base_lr.toDouble()) && base_lr.toDouble() >= 0 &&
                      steps.toInt() >= 0;
  TORCH_CHECK_VALUE(is_one,
                    "LrScheduler: the archive to load is not one of a scheduler; pass what torch::save made of "
                    "one");
  scheduler.base_lr_ = base_lr.toDouble();
  scheduler.set(steps.toInt());
  return archive;
}

}  // namespace mezzo
