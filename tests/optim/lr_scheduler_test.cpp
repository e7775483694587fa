#include "mezzo/optim/lr_scheduler.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/serialize.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

#include "mezzo/optim/metric_schedule.h"
#include "mezzo/optim/sgd.h"

namespace mezzo {
namespace {

TEST(LrSchedulerTest, SetsTheLearningRateOfTheStepToCome) {
  auto weight = at::ones({2}).requires_grad_();
  SGD sgd({{"weight", weight}}, SGDOptions().lr(0.4));
  const LrSchedule schedule{.kind = LrScheduleKind::kLinear, .warmup_steps = 2, .total_steps = 6};
  LrScheduler scheduler(sgd, schedule);
  std::vector<double> rates{sgd.lr()};
  for (int i = 0; i < 6; ++i) {
    scheduler.step();
    rates.push_back(scheduler.get_last_lr());
  }
  const std::vector<double> expected{0, 0.2, 0.4, 0.3, 0.2, 0.1, 0};
  for (size_t i = 0; i < rates.size(); ++i) {
    EXPECT_DOUBLE_EQ(rates[i], expected[i]);
  }
  EXPECT_THROW(LrScheduler(sgd, {.kind = LrScheduleKind::kGreedy}), c10::ValueError);
  EXPECT_THROW(LrScheduler(sgd, {.kind = LrScheduleKind::kLinear}), c10::ValueError) << "without total_steps";
  EXPECT_THROW(LrScheduler(sgd, {.kind = LrScheduleKind::kInverseSqrt, .timescale = 0}), c10::ValueError);
}

TEST(LrSchedulerTest, WritesToALearningRateThatIsATensor) {
  auto weight = at::ones({2}).requires_grad_();
  SGD sgd({{"weight", weight}}, SGDOptions().lr(0.4)), other({{"weight", weight}}, SGDOptions().lr(0.4));
  const auto lr = at::full({}, 0.4, at::kDouble);
  sgd.set_lr(lr);
  const LrSchedule schedule{.kind = LrScheduleKind::kLinear, .total_steps = 7};
  LrScheduler scheduler(sgd, schedule), beside(other, schedule);
  for (int i = 0; i < 7; ++i) {
    scheduler.step();
    beside.step();
    EXPECT_EQ(lr.item<double>(), other.lr());
    EXPECT_EQ(scheduler.get_last_lr(), other.lr());
  }
}

TEST(LrSchedulerTest, GoesOnFromArchives) {
  auto weight = at::ones({2}).requires_grad_();
  const LrSchedule schedule{.kind = LrScheduleKind::kLinear, .total_steps = 4};
  std::stringstream of_optimizer, of_scheduler;
  SGD sgd({{"weight", weight}}, SGDOptions().lr(0.4));
  LrScheduler scheduler(sgd, schedule);
  scheduler.step();
  torch::save(sgd, of_optimizer);
  torch::save(scheduler, of_scheduler);

  SGD again({{"weight", weight}}, SGDOptions().lr(0.4));
  LrScheduler resumed(again, schedule);
  torch::load(again, of_optimizer);
  torch::load(resumed, of_scheduler);
  EXPECT_EQ(resumed.steps(), 1);
  EXPECT_EQ(again.lr(), sgd.lr());
  for (int i = 0; i < 3; ++i) {
    scheduler.step();
    resumed.step();
    EXPECT_EQ(again.lr(), sgd.lr());
  }
  std::stringstream of_tensor;
  torch::save(weight.detach(), of_tensor);
  EXPECT_THROW(torch::load(resumed, of_tensor), c10::ValueError);
}

TEST(LrSchedulerTest, RefusesAnArchiveWhoseLearningRateIsNoNumber) {
  auto weight = at::ones({2}).requires_grad_();
  SGD sgd({{"weight", weight}}, SGDOptions().lr(0.4));
  LrScheduler scheduler(sgd, {.kind = LrScheduleKind::kLinear, .total_steps = 4});
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    torch::serialize::OutputArchive archive;
    archive.write("base_lr", c10::IValue(bad));
    archive.write("steps", c10::IValue(int64_t{1}));
    std::stringstream file;
    archive.save_to(file);
    EXPECT_THROW(torch::load(scheduler, file), c10::ValueError) << bad;
    EXPECT_EQ(scheduler.steps(), 0);
    EXPECT_EQ(sgd.lr(), 0.4);
    EXPECT_THROW(MetricSchedule(LrScheduleKind::kGreedy, bad), c10::ValueError) << bad;
    MetricSchedule schedule(LrScheduleKind::kReduceLrOnPlateau, 0.1);
    auto state = schedule.state_dict();
    state["lr"] = bad;
    EXPECT_THROW(schedule.load_state_dict(state), c10::ValueError) << bad;
    EXPECT_EQ(schedule.lr(), 0.1);
  }
}

}  // namespace
}  // namespace mezzo
