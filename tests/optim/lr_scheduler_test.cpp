#include "mezzo/optim/lr_scheduler.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "mezzo/optim/sgd.h"

namespace mezzo {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::Pointwise;

constexpr double kBaseLr = 3e-5;

at::Tensor parameter() { return at::ones({2}).requires_grad_(); }

at::Tensor lr_tensor(double lr) { return at::full({}, lr, at::kDouble); }

TEST(LRSchedulerTest, SetsTheLearningRateOfTheStepToCome) {
  SGD sgd({{"weight", parameter()}}, SGDOptions().lr(0.4));
  LRScheduler scheduler(sgd, get_schedule("linear", {.num_warmup_steps = 2, .num_training_steps = 6}));
  std::vector<double> rates{sgd.lr()};
  for (int i = 0; i < 6; ++i) {
    scheduler.step();
    EXPECT_EQ(scheduler.get_last_lr().front(), sgd.lr());
    rates.push_back(sgd.lr());
  }
  EXPECT_THAT(rates, Pointwise(DoubleEq(), {0.0, 0.2, 0.4, 0.3, 0.2, 0.1, 0.0}));
}

/// As torch.optim.lr_scheduler.LambdaLR does.
TEST(LRSchedulerTest, DrivesEachGroupOfALibTorchOptimizer) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double lr : {0.5, 0.25}) {
    groups.emplace_back(std::vector{parameter()}, std::make_unique<torch::optim::SGDOptions>(lr));
  }
  torch::optim::SGD sgd(groups, torch::optim::SGDOptions(1));
  LRScheduler scheduler(sgd, [](int64_t step) { return 1 / static_cast<double>(1 + step); });
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.5, 0.25));
  scheduler.step();
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.25, 0.125));
  scheduler.step(/*found_inf=*/at::ones({}));
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.25, 0.125)) << "that step was skipped";
  scheduler.step(/*found_inf=*/at::zeros({}));
  EXPECT_EQ(sgd.param_groups()[1].options().get_lr(), 0.25 / 3);

  std::stringstream file;
  torch::save(scheduler, file);
  torch::optim::SGD again(groups, torch::optim::SGDOptions(1));
  again.param_groups()[0].options().set_lr(7);
  LRScheduler resumed(again, [](int64_t step) { return 1 / static_cast<double>(1 + step); });
  torch::load(resumed, file);
  EXPECT_EQ(resumed.steps(), 2);
  EXPECT_EQ(resumed.get_last_lr(), scheduler.get_last_lr());

  LRScheduler of_one(lr_tensor(1), [](int64_t) { return 1.0; });
  file.seekg(0);
  EXPECT_THROW(torch::load(of_one, file), c10::ValueError) << "which has one group";
}

TEST(LRSchedulerTest, RefusesFactorsThatAreNoNumbers) {
  const auto lr = lr_tensor(0.5);
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    const auto schedule = [bad](int64_t step) { return step == 0 ? 1.0 : bad; };
    EXPECT_THROW(LRScheduler(lr, schedule), c10::ValueError);
    EXPECT_THROW(LRScheduler(lr, schedule, /*num_steps=*/3), c10::ValueError);
    LRScheduler scheduler(lr, [bad](int64_t step) { return step < 2 ? 1.0 : bad; });
    scheduler.step();
    EXPECT_THROW(scheduler.step(), c10::ValueError);
    EXPECT_EQ(scheduler.steps(), 1);
    EXPECT_EQ(lr.item<double>(), 0.5);
  }
  EXPECT_THROW(LRScheduler(lr, [](int64_t) { return 1.0; }, /*num_steps=*/0), c10::ValueError);
  EXPECT_THROW(LRScheduler(at::ones({1}), [](int64_t) { return 1.0; }), c10::ValueError);
  EXPECT_THROW(LRScheduler(lr, [](int64_t) { return 1.0; }).set_steps(-1), c10::ValueError);
}

/// 'x' is a step that is skipped, '.' one that is taken.
std::vector<double> rates_of(LRScheduler scheduler, const at::Tensor& lr, const std::string& steps) {
  std::vector<double> rates{lr.item<double>()};
  for (const char step : steps) {
    scheduler.step(at::full({}, step == 'x' ? 1.0F : 0.0F));
    rates.push_back(lr.item<double>());  // the same tensor all the time
  }
  return rates;
}

TEST(LRSchedulerTest, HasTheSameBitsByATableOnTheDevice) {
  for (const auto& name : lr_schedule_names()) {
    const auto schedule = get_schedule(name, {.num_warmup_steps = 3, .num_training_steps = 10, .num_decay_steps = 4});
    const std::string steps = "x..xx.....x..x.";
    const auto on_device = lr_tensor(kBaseLr), on_host = lr_tensor(kBaseLr);
    const auto expected = rates_of(LRScheduler(on_host, schedule), on_host, steps);
    EXPECT_EQ(rates_of(LRScheduler(on_device, schedule, /*num_steps=*/10), on_device, steps), expected) << name;
  }
}

TEST(LRSchedulerTest, StaysAtTheEndOfItsTableAndContinuesFromAnyStep) {
  const auto linear = get_schedule("linear", {.num_training_steps = 4});
  const auto lr = lr_tensor(kBaseLr);
  LRScheduler scheduler(lr, linear, /*num_steps=*/3);
  for (int i = 0; i < 9; ++i) {
    scheduler.step();
  }
  EXPECT_EQ(scheduler.steps(), 9);
  EXPECT_EQ(lr.item<double>(), kBaseLr * linear(3));
  scheduler.set_steps(1);
  EXPECT_EQ(lr.item<double>(), kBaseLr * linear(1));

  std::stringstream file;
  torch::save(scheduler, file);
  const auto other = lr_tensor(1);
  LRScheduler resumed(other, linear, /*num_steps=*/3);
  torch::load(resumed, file);
  EXPECT_EQ(other.item<double>(), kBaseLr * linear(1));
  EXPECT_EQ(resumed.steps(), 1);
}

TEST(LRSchedulerTest, ContinuesFromArchives) {
  const auto weight = parameter();
  const auto schedule = get_schedule("linear", {.num_training_steps = 4});
  std::stringstream of_optimizer, of_scheduler;
  SGD sgd({{"weight", weight}}, SGDOptions().lr(0.4));
  LRScheduler scheduler(sgd, schedule);
  scheduler.step();
  torch::save(sgd, of_optimizer);
  torch::save(scheduler, of_scheduler);

  SGD again({{"weight", weight}}, SGDOptions().lr(0.4));
  LRScheduler resumed(again, schedule);
  torch::load(again, of_optimizer);
  torch::load(resumed, of_scheduler);
  EXPECT_EQ(resumed.steps(), 1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(again.lr(), sgd.lr());
    scheduler.step();
    resumed.step();
  }
  std::stringstream of_tensor;
  torch::save(weight.detach(), of_tensor);
  EXPECT_THROW(torch::load(resumed, of_tensor), c10::ValueError);
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    torch::serialize::OutputArchive archive;
    archive.write("base_lrs", c10::IValue(std::vector{bad}));
    archive.write("steps", c10::IValue(int64_t{1}));
    std::stringstream file;
    archive.save_to(file);
    EXPECT_THROW(torch::load(resumed, file), c10::ValueError) << bad;
    EXPECT_EQ(resumed.steps(), 4);
    EXPECT_EQ(again.lr(), 0);
  }
}

TEST(ReduceLROnPlateauTest, LowersEachGroupAndContinuesFromAnArchive) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double lr : {0.5, 0.25}) {
    groups.emplace_back(std::vector{parameter()}, std::make_unique<torch::optim::SGDOptions>(lr));
  }
  torch::optim::SGD sgd(groups, torch::optim::SGDOptions(1)), again(groups, torch::optim::SGDOptions(1));
  const ReduceLROnPlateauOptions options{.mode = "max", .factor = 0.5, .patience = 1, .min_lr = 0.125};
  ReduceLROnPlateau scheduler(sgd, options), resumed(again, options);
  for (const double accuracy : {0.5, 0.4, 0.4, 0.4}) {
    scheduler.step(accuracy);
  }
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.25, 0.125));
  std::stringstream file;
  torch::save(scheduler, file);
  torch::load(resumed, file);
  EXPECT_EQ(resumed.state_dict(), scheduler.state_dict());
  for (ReduceLROnPlateau* each : {&scheduler, &resumed}) {
    each->step(0.5);  // the second in a row
    EXPECT_THAT(each->get_last_lr(), ElementsAre(0.125, 0.125));
  }
}

TEST(ReduceLROnPlateauTest, RefusesAStateThatIsNone) {
  const auto lr = lr_tensor(0.1);
  ReduceLROnPlateau scheduler(lr);
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    for (const char* entry : {"lr", "bad"}) {
      auto state = scheduler.state_dict();
      state[entry] = bad == -1.0 && std::string(entry) == "bad" ? 0.5 : bad;
      EXPECT_THROW(scheduler.load_state_dict(state), c10::ValueError) << entry << " " << bad;
    }
    EXPECT_THROW(GreedyLR(lr_tensor(bad)), c10::ValueError) << bad;
  }
  EXPECT_EQ(lr.item<double>(), 0.1);
}

}  // namespace
}  // namespace mezzo
