#include "text/train/run_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

namespace mezzo::text {
namespace {

using testing::ElementsAreArray;
using testing::SizeIs;

constexpr int64_t kTexts = 23;

/// Shares, ranks, and how texts are dealt.
class RunPlanTest : public testing::TestWithParam<std::tuple<int64_t, int, std::string>> {
 protected:
  static RunPlan plan_of(int64_t shares, int ranks, const std::string& balance) {
    TrainConfig config;
    config.batch_size = 2;
    config.shares = shares;
    config.grad_accumulation = 2;
    config.balance = balance;
    RunPlan plan = plan_run(config, kTexts, Ranks(nullptr));
    plan.ranks = ranks;
    return plan;
  }

  static TokenizedTexts make_texts() {
    TokenizedTexts texts;
    for (int64_t i = 0; i < kTexts; ++i) {
      texts.ids.push_back(std::vector<int32_t>(static_cast<size_t>(1 + i * 7 % 5), 1));
    }
    return texts;
  }

  /// Of a step: what counts of each micro-batch, by its number, which keys dropout.
  static std::map<uint32_t, std::vector<int64_t>> dealt(RunPlan& plan, int64_t step) {
    std::map<uint32_t, std::vector<int64_t>> all;
    size_t of_first = 0;
    for (plan.rank = 0; plan.rank < plan.ranks; ++plan.rank) {
      const auto batches = plan.micro_batches(make_texts(), step);
      of_first = plan.rank == 0 ? batches.size() : of_first;
      EXPECT_THAT(batches, SizeIs(of_first)) << "ranks that make fewer calls than others hang";
      for (const MicroBatch& batch : batches) {
        EXPECT_FALSE(batch.indices.empty());
        if (!batch.is_stand_in) {
          EXPECT_TRUE(all.emplace(batch.number, batch.indices).second) << batch.number << " is dealt twice";
        }
      }
    }
    return all;
  }
};

TEST_P(RunPlanTest, DealsEachTextOnceAndAlikeOnSoManyRanks) {
  const auto& [shares, ranks, balance] = GetParam();
  RunPlan plan = plan_of(shares, ranks, balance), as_many = plan_of(shares, static_cast<int>(shares), balance);
  ASSERT_EQ(plan.batch_size, 2 * shares);
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<int64_t> seen;
    for (int64_t step = epoch * plan.steps_per_epoch; step < (epoch + 1) * plan.steps_per_epoch; ++step) {
      const auto batches = dealt(plan, step);
      EXPECT_EQ(batches, dealt(as_many, step));
      for (const auto& [number, indices] : batches) {
        seen.insert(seen.end(), indices.begin(), indices.end());
      }
    }
    std::vector<int64_t> every(kTexts);
    std::iota(every.begin(), every.end(), 0);
    std::sort(seen.begin(), seen.end());
    EXPECT_THAT(seen, ElementsAreArray(every));
  }
}

INSTANTIATE_TEST_SUITE_P(SharesOnRanks,
                         RunPlanTest,
                         testing::Combine(testing::Values(1, 2, 3, 5),
                                          testing::Values(1, 2, 3, 4, 7),
                                          testing::Values("rows", "tokens")));

TrainConfig small_config() {
  TrainConfig config;
  config.batch_size = 2;
  config.shares = 1;
  return config;
}

TEST(RunPlanDefaultsTest, AreThreeEpochsWithAWarmupAndALinearDecay) {
  const RunPlan plan = plan_run(small_config(), /*num_texts=*/200, Ranks(nullptr));  // 100 steps an epoch
  EXPECT_EQ(plan.total_steps, 300);
  EXPECT_EQ(plan.eval_every, 50);
  EXPECT_EQ(plan.save_every, 0);
  EXPECT_DOUBLE_EQ(plan.schedule(0), 0);
  EXPECT_DOUBLE_EQ(plan.schedule(15), 0.5);
  EXPECT_DOUBLE_EQ(plan.schedule(30), 1);
  EXPECT_DOUBLE_EQ(plan.schedule(165), 0.5);
}

TEST(RunPlanDefaultsTest, FewTextsGetMoreEpochs) {
  const auto epochs_of = [](int64_t num_texts) {
    TrainConfig config = small_config();
    choose_by_steps(config, num_texts);
    return config.epochs.value();
  };
  EXPECT_EQ(epochs_of(1), 20) << "at most";
  EXPECT_EQ(epochs_of(60), 10) << "300 steps of 2 texts";
  EXPECT_EQ(epochs_of(62), 10);
  EXPECT_EQ(epochs_of(200), 3);
  EXPECT_EQ(epochs_of(100'000), 3);
}

TEST(RunPlanDefaultsTest, WarmupStepsWinOverTheRatio) {
  TrainConfig config = small_config();
  config.warmup_ratio = 0.5;
  config.warmup_steps = 10;
  const RunPlan plan = plan_run(config, /*num_texts=*/200, Ranks(nullptr));
  EXPECT_DOUBLE_EQ(plan.schedule(5), 0.5);
  EXPECT_DOUBLE_EQ(plan.schedule(10), 1);
}

TEST(RunPlanDefaultsTest, AConstantScheduleDoesNotWarmUpUnlessAsked) {
  TrainConfig config = small_config();
  config.schedule = "constant";
  EXPECT_DOUBLE_EQ(plan_run(config, 200, Ranks(nullptr)).schedule(0), 1);
  config.warmup_ratio = 0.1;
  EXPECT_DOUBLE_EQ(plan_run(config, 200, Ranks(nullptr)).schedule(0), 0);
}

TEST(RunPlanDefaultsTest, ReferenceRecipeIsTheReferencePrograms) {
  TrainConfig config = small_config();
  apply_recipe(config, "reference");
  const RunPlan plan = plan_run(config, /*num_texts=*/200, Ranks(nullptr));
  EXPECT_EQ(plan.total_steps, 100);
  EXPECT_EQ(plan.eval_every, 50);
  EXPECT_DOUBLE_EQ(plan.schedule(0), 1);
  EXPECT_DOUBLE_EQ(plan.schedule(99), 1);
  EXPECT_EQ(config.learning_rate, 3e-5);
  EXPECT_EQ(config.max_length, 128);
  EXPECT_EQ(config.max_grad_norm, 0);
  EXPECT_EQ(config.warmup_ratio, 0);
  EXPECT_THROW(apply_recipe(config, "referenc"), c10::ValueError);
}

TEST(RunPlanDefaultsTest, IntervalsBecomeStepsOfTheRun) {
  TrainConfig config = small_config();
  config.eval_every = StepInterval::epochs(0.25);
  config.save_every = StepInterval::epochs(1);
  choose_by_steps(config, /*num_texts=*/200);
  EXPECT_EQ(config.eval_every, StepInterval::steps(25));
  EXPECT_EQ(config.save_every, StepInterval::steps(100));
  const RunPlan plan = plan_run(config, /*num_texts=*/200, Ranks(nullptr));
  EXPECT_EQ(plan.eval_every, 25);
  EXPECT_EQ(plan.save_every, 100);
}

TEST(RunPlanOfNothingTest, IsNotMadeBeforeSharesAreChosen) {
  TrainConfig config;
  config.batch_size = 2;
  EXPECT_THROW(plan_run(config, kTexts, Ranks(nullptr)), c10::Error);
}

}  // namespace
}  // namespace mezzo::text
