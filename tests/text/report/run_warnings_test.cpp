#include "text/report/run_warnings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace mezzo::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class RunWarningsTest : public testing::Test {
 protected:
  /// Takes steps with the losses that `loss` gives them. Returns the warnings of steps.
  std::vector<WarningRecord> take_steps(int64_t count, const std::function<double(int64_t)>& loss) {
    std::vector<WarningRecord> found;
    for (int64_t step = 1; step <= count; ++step) {
      const double noise = step % 2 == 0 ? 0.05 : -0.05;
      if (const auto warning = warnings_.step({.step = step, .loss = loss(step) + noise, .lr = 5e-5})) {
        found.push_back(*warning);
      }
    }
    return found;
  }

  void evaluate(int64_t step, double loss, double accuracy, std::vector<std::string> never_predicted = {}) {
    warnings_.eval({.step = step,
                    .split = "dev",
                    .loss = loss,
                    .metrics = {{"macro_f1", 0.1}, {"accuracy", accuracy}},
                    .never_predicted = std::move(never_predicted),
                    .majority_baseline = 0.5});
  }

  std::vector<std::string> kinds_at_end(std::optional<int64_t> best_step) const {
    std::vector<std::string> kinds;
    for (const WarningRecord& warning : warnings_.end(best_step)) kinds.push_back(warning.kind);
    return kinds;
  }

  RunWarnings warnings_;
};

double falling(int64_t step) { return 2.0 / static_cast<double>(step); }

TEST_F(RunWarningsTest, HasNothingToSayOfAGoodRun) {
  EXPECT_THAT(take_steps(100, falling), IsEmpty());
  evaluate(50, 0.5, 0.8);
  evaluate(100, 0.54, 0.9);  // a rise of less than a tenth
  EXPECT_THAT(kinds_at_end(100), IsEmpty());
}

TEST_F(RunWarningsTest, WarnsOnceThatTheLossIsNotFinite) {
  const auto found = take_steps(
      30, [](int64_t step) { return step == 3 || step == 7 ? std::numeric_limits<double>::quiet_NaN() : 1; });
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].step, 3);
  EXPECT_EQ(found[0].kind, "diverged");
  EXPECT_EQ(found[0].text,
            "step 3: the loss is inf or NaN. Lower --learning-rate (5e-05 in this step), or clip with --max-grad-norm "
            "1, or use another --precision.");
}

TEST_F(RunWarningsTest, WarnsAtTheStepWhereTheLossIsFarAboveItsStart) {
  const auto found = take_steps(60, [](int64_t step) { return step <= 20 ? 1 : 5; });
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].step, 26) << "the first with more than half of the last ten at 5";
  EXPECT_THAT(found[0].text, HasSubstr("the mean loss of 10 steps is 3.400, and was 1.000 at the start"));
  EXPECT_THAT(kinds_at_end(std::nullopt), IsEmpty()) << "that the loss rose is said already";
}

TEST_F(RunWarningsTest, WarnsOfATrainingLossThatRose) {
  EXPECT_THAT(take_steps(200, [](int64_t step) { return 1 + 0.002 * static_cast<double>(step); }), IsEmpty());
  ASSERT_THAT(kinds_at_end(std::nullopt), ElementsAre("loss_rises"));
  EXPECT_THAT(warnings_.end(std::nullopt)[0].text, HasSubstr("1.021 over the first 20 steps and 1.381 over the last"));
}

TEST_F(RunWarningsTest, TakesNoiseForNoRise) {
  take_steps(40, [](int64_t step) { return step == 40 ? 1.02 : 1; });
  EXPECT_THAT(kinds_at_end(std::nullopt), IsEmpty());
}

TEST_F(RunWarningsTest, SaysNothingOfTheCurveOfAFewSteps) {
  take_steps(19, [](int64_t step) { return static_cast<double>(step); });
  EXPECT_THAT(kinds_at_end(std::nullopt), IsEmpty());
}

TEST_F(RunWarningsTest, WarnsOfALossOnDevThatRisesWhileThatOfTrainingFalls) {
  take_steps(100, falling);
  evaluate(50, 0.5, 0.8);
  evaluate(75, 0.6, 0.81);
  evaluate(100, 0.7, 0.9);
  ASSERT_THAT(kinds_at_end(100), ElementsAre("overfits"));
  EXPECT_THAT(warnings_.end(100)[0].text, HasSubstr("rose from 0.500 (step 50) to 0.700 (step 100)"));
}

TEST_F(RunWarningsTest, WarnsOfAnUndefinedMetricOnDev) {
  const auto evaluated = [&](double pearson, double loss = 0.5, bool is_final = false) {
    return warnings_.eval(
        {.step = 8, .split = "dev", .loss = loss, .metrics = {{"pearson", pearson}}, .is_final = is_final});
  };
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(evaluated(0.2));
  EXPECT_FALSE(evaluated(kNaN, /*loss=*/kNaN));
  EXPECT_FALSE(evaluated(kNaN, 0.5, /*is_final=*/true));
  const auto warning = evaluated(kNaN);
  ASSERT_TRUE(warning);
  EXPECT_EQ(warning->step, 8);
  EXPECT_EQ(warning->kind, "undefined_metric");
  EXPECT_EQ(warning->text,
            "step 8: the metric pearson is undefined for the predictions on dev. The dev loss compares such a model "
            "with others. If this goes on, pass another --metric.");
}

TEST_F(RunWarningsTest, WarnsOfTheKeptModelAndOfNoOther) {
  evaluate(1, 0.6, 0.4, {"anger", "joy"});
  evaluate(2, 0.6, 0.5);
  evaluate(3, 0.6, 0.6, {"a", "b", "c", "d", "e", "f"});
  EXPECT_THAT(kinds_at_end(1), ElementsAre("never_predicted", "majority_baseline"));
  EXPECT_THAT(warnings_.end(1)[0].text, HasSubstr("never predicts 2 labels on dev: 'anger', 'joy'. "));
  EXPECT_THAT(warnings_.end(1)[1].text,
              HasSubstr("accuracy on dev is 0.4000, and 0.5000 if every text gets the most frequent label."));
  EXPECT_THAT(kinds_at_end(2), ElementsAre("majority_baseline")) << "equal is no better";
  EXPECT_THAT(kinds_at_end(3), ElementsAre("never_predicted"));
  EXPECT_THAT(warnings_.end(3)[0].text, HasSubstr("'e', …. "));
  // With the thresholds that were fitted after training.
  warnings_.eval({.step = 3, .split = "dev", .loss = 0.6, .is_final = true, .never_predicted = {"d"}});
  EXPECT_THAT(warnings_.end(3)[0].text, HasSubstr("never predicts 1 label on dev: 'd'. "));
}

}  // namespace
}  // namespace mezzo::text
