#include "mezzo/optim/device_lr_schedule.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "mezzo/optim/lr_scheduler.h"
#include "mezzo/optim/sgd.h"

namespace mezzo {
namespace {

constexpr double kBaseLr = 3e-5;

/// 'x' is a step that is skipped, '.' one that is taken.
std::vector<double> rates_of(const LrSchedule& schedule, const std::string& steps) {
  DeviceLrSchedule on_device(schedule, kBaseLr, 10, at::kCPU);
  const auto lr = on_device.lr();
  std::vector<double> rates{lr.item<double>()};
  for (const char step : steps) {
    on_device.advance(at::full({}, step == 'x' ? 1.0f : 0.0f));
    rates.push_back(lr.item<double>());  // the same tensor all the time
  }
  return rates;
}

TEST(DeviceLrScheduleTest, FollowsTheHostsScheduleToTheBit) {
  for (const auto& name : lr_schedule_names()) {
    LrSchedule schedule{.kind = parse_lr_schedule(name), .warmup_steps = 3, .total_steps = 10};
    schedule.decay_steps = 4;
    if (follows_metric(schedule.kind)) {
      EXPECT_THROW(DeviceLrSchedule(schedule, kBaseLr, 10, at::kCPU), c10::ValueError);
      continue;
    }
    auto weight = at::ones({2}).requires_grad_();
    SGD sgd({{"weight", weight}}, SGDOptions().lr(kBaseLr));
    LrScheduler on_host(sgd, schedule);
    std::vector<double> rates{sgd.lr()};
    const std::string steps = "x..xx.....x..x.";
    for (const char step : steps) {
      if (step == '.') {
        on_host.step();
      }
      rates.push_back(sgd.lr());
    }
    EXPECT_EQ(rates_of(schedule, steps), rates) << name;
  }
}

TEST(DeviceLrScheduleTest, StaysWhereItEndsAndGoesOnFromAnyStep) {
  const LrSchedule linear{.kind = LrScheduleKind::kLinear, .total_steps = 4};
  DeviceLrSchedule schedule(linear, kBaseLr, 3, at::kCPU);
  for (int i = 0; i < 9; ++i) {
    schedule.advance();
  }
  EXPECT_EQ(schedule.steps(), 9);
  EXPECT_EQ(schedule.lr().item<double>(), kBaseLr * linear.factor(3));
  schedule.set_steps(1);
  EXPECT_EQ(schedule.lr().item<double>(), kBaseLr * linear.factor(1));
  schedule.advance(at::ones({1}));
  EXPECT_EQ(schedule.steps(), 1) << "that step was skipped";
}

TEST(DeviceLrScheduleTest, RefusesWhatHasNoLearningRates) {
  const LrSchedule constant{.kind = LrScheduleKind::kConstant};
  EXPECT_THROW(DeviceLrSchedule(constant, -1, 3, at::kCPU), c10::ValueError);
  EXPECT_THROW(DeviceLrSchedule(constant, std::numeric_limits<double>::quiet_NaN(), 3, at::kCPU), c10::ValueError);
  EXPECT_THROW(DeviceLrSchedule(constant, 1, 0, at::kCPU), c10::ValueError);
  EXPECT_THROW(DeviceLrSchedule({.kind = LrScheduleKind::kInverseSqrt, .timescale = 0}, 1, 3, at::kCPU),
               c10::ValueError);
  DeviceLrSchedule schedule(constant, 1, 3, at::kCPU);
  EXPECT_THROW(schedule.set_steps(-1), c10::ValueError);
}

}  // namespace
}  // namespace mezzo
