#include "mezzo/optim/lr_scheduler.h"

#include <c10/util/Exception.h>

namespace mezzo {

LrScheduler::LrScheduler(Optimizer& optimizer, LrSchedule schedule, int64_t steps)
    : optimizer_(optimizer), schedule_(schedule), base_lr_(optimizer.lr()), steps_(steps) {
  TORCH_CHECK_VALUE(!follows_metric(schedule.kind),
                    "LrScheduler: this kind of schedule follows a metric; use a MetricSchedule");
  TORCH_CHECK_VALUE(steps >= 0, "LrScheduler: steps must not be negative, got ", steps);
  set();
}

void LrScheduler::step() {
  ++steps_;
  set();
}

void LrScheduler::set() { optimizer_.set_lr(base_lr_ * schedule_.factor(steps_)); }

}  // namespace mezzo
