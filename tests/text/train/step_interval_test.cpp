#include "mezzo/text/train/step_interval.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace mezzo::text {
namespace {

using testing::HasSubstr;

TEST(StepIntervalTest, ReadsStepsEpochsAndShares) {
  EXPECT_EQ(StepInterval::parse("--eval-every", "0"), StepInterval());
  EXPECT_EQ(StepInterval::parse("--eval-every", "50"), StepInterval::steps(50));
  EXPECT_EQ(StepInterval::parse("--eval-every", "1"), StepInterval::steps(1)) << "one step, not one epoch";
  EXPECT_EQ(StepInterval::parse("--eval-every", "epoch"), StepInterval::epochs(1));
  EXPECT_EQ(StepInterval::parse("--eval-every", "0.25"), StepInterval::epochs(0.25));
  for (const char* text : {"0", "50", "epoch", "0.25", "0.1"}) {
    EXPECT_EQ(StepInterval::parse("", text).text(), text);
  }
}

TEST(StepIntervalTest, RefusesWhatIsNoInterval) {
  for (const char* text :
       {"", "-1", "1.5", "1.0", "0.0", "nan", "epochs", "5 steps", "2000000000", "99999999999999999999"}) {
    try {
      StepInterval::parse("--save-every", text);
      ADD_FAILURE() << "took " << text;
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  HasSubstr("--save-every is '" + std::string(text) + "', expected a number of steps"));
    }
  }
}

TEST(StepIntervalTest, IsAtLeastOneStepOfAnEpoch) {
  EXPECT_EQ(StepInterval().in_steps(100), 0);
  EXPECT_EQ(StepInterval::steps(7).in_steps(100), 7);
  EXPECT_EQ(StepInterval::epochs(1).in_steps(100), 100);
  EXPECT_EQ(StepInterval::epochs(0.25).in_steps(10), 3) << "rounded up, so at most four times an epoch";
  EXPECT_EQ(StepInterval::epochs(0.001).in_steps(10), 1);
}

TEST(StepIntervalTest, DefaultEvaluatesFromOneToTenTimesAnEpoch) {
  EXPECT_EQ(default_eval_interval(1).in_steps(1), 1);
  EXPECT_EQ(default_eval_interval(30).in_steps(30), 30);
  EXPECT_EQ(default_eval_interval(275).in_steps(275), 46);
  for (const int64_t steps : {1, 49, 76, 275, 600, 10'000, 123'457}) {
    const int64_t every = default_eval_interval(steps).in_steps(steps);
    EXPECT_LE(every, steps);
    EXPECT_GE(every * 10, steps) << "more than ten times in " << steps << " steps";
  }
}

}  // namespace
}  // namespace mezzo::text
