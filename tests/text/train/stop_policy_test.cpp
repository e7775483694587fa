#include "text/train/stop_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace mezzo::text {
namespace {

using testing::ElementsAre;

constexpr int64_t kSteps = 10;

class StopPolicyTest : public testing::Test {
 protected:
  StopPolicyTest() {
    plan_.total_steps = kSteps;
    plan_.eval_every = 4;
  }

  StopPolicy policy(bool has_dev = true) const { return {config_, plan_, has_dev}; }

  /// The steps of a run for which `is_due` holds.
  template <class IsDue>
  std::vector<int64_t> steps(const IsDue& is_due) const {
    std::vector<int64_t> due;
    for (int64_t step = 0; step <= kSteps; ++step) {
      TrainerState state;
      state.step = step;
      if (is_due(policy(), state)) due.push_back(step);
    }
    return due;
  }

  TrainConfig config_;
  RunPlan plan_{};
};

TEST_F(StopPolicyTest, EvaluatesAtIntervalsAndAtTheEnd) {
  const auto is_due = [](const StopPolicy& policy, const TrainerState& state) { return policy.eval_is_due(state); };
  EXPECT_THAT(steps(is_due), ElementsAre(4, 8, 10));
  config_.pause_at = 0.55;
  EXPECT_THAT(steps(is_due), ElementsAre(4, 6, 8, 10)) << "also where it pauses";
  EXPECT_EQ(policy().last_step(), 6);
  TrainerState evaluated;
  evaluated.step = evaluated.last_eval_step = 4;
  EXPECT_FALSE(policy().eval_is_due(evaluated)) << "once after a step";
  evaluated.last_eval_step = 0;
  EXPECT_FALSE(policy(/*has_dev=*/false).eval_is_due(evaluated));
}

TEST_F(StopPolicyTest, SavesAtIntervalsAndAtTheEndOfTheRunOnly) {
  const auto is_due = [](const StopPolicy& policy, const TrainerState& state) {
    return policy.save_is_due(state.step);
  };
  EXPECT_THAT(steps(is_due), ElementsAre());
  plan_.save_every = 3;
  config_.pause_at = 0.5;
  EXPECT_THAT(steps(is_due), ElementsAre(0, 3, 6, 9, 10));
}

TEST_F(StopPolicyTest, GoesRightOnWhereNothingIsDue) {
  plan_.save_every = 3;
  EXPECT_THAT(
      steps([](const StopPolicy& policy, const TrainerState& state) { return policy.goes_right_on(state.step); }),
      ElementsAre(1, 2, 5, 7));
}

TEST_F(StopPolicyTest, RunsOutOfPatienceAfterAnEvaluation) {
  config_.patience = 2;
  plan_.eval_every = 2;
  TrainerState state;
  state.best = BestModel{.step = 2, .metric = "accuracy", .value = 0.5, .loss = 1, .hash = ""};
  state.step = 6;
  EXPECT_FALSE(policy().is_over(state)) << "step 6 is not evaluated yet";
  state.last_eval_step = 6;
  EXPECT_TRUE(policy().is_over(state));
  state.best->step = 4;
  EXPECT_FALSE(policy().is_over(state));
  state.step = kSteps;
  EXPECT_TRUE(policy().is_over(state));
}

}  // namespace
}  // namespace mezzo::text
