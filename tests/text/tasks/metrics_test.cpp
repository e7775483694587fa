#include "mezzo/text/tasks/metrics.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>

#include "not_finite.h"
#include "text/scratch_folder.h"

namespace mezzo::text {
namespace {

using testing::ElementsAre;
using ClassIds = std::vector<int64_t>;

TEST(ClassificationReportTest, CountsAndPrintsWhatScikitLearnDocuments) {
  // The example of scikit-learn's documentation.
  const auto report = classification_report(ClassIds{0, 1, 2, 2, 2}, ClassIds{0, 0, 2, 2, 1}, {"class 0", "class 1", "class 2"});
  EXPECT_DOUBLE_EQ(report.accuracy, 0.6);
  EXPECT_DOUBLE_EQ(report.classes[2].f1, 0.8);
  EXPECT_DOUBLE_EQ(report.macro_avg.precision, 0.5);
  EXPECT_THAT(report.confusion, ElementsAre(ElementsAre(1, 0, 0), ElementsAre(1, 0, 0), ElementsAre(0, 1, 2)));
  EXPECT_EQ(report.to_text(),
            "              precision    recall  f1-score   support\n"
            "\n"
            "     class 0       0.50      1.00      0.67         1\n"
            "     class 1       0.00      0.00      0.00         1\n"
            "     class 2       1.00      0.67      0.80         3\n"
            "\n"
            "    accuracy                           0.60         5\n"
            "   macro avg       0.50      0.56      0.49         5\n"
            "weighted avg       0.70      0.60      0.61         5\n");
}

TEST(ClassificationReportTest, LeavesOutAClassThatNeverOccurs) {
  const auto report = classification_report(ClassIds{0, 0, 0}, ClassIds{0, 0, 2}, {"a", "never", "only predicted"});
  EXPECT_THAT(report.names, ElementsAre("a", "only predicted"));
  ASSERT_EQ(report.classes.size(), 2U);
  EXPECT_EQ(report.classes[1].support, 0);
  EXPECT_DOUBLE_EQ(report.macro_avg.f1, 0.4);
  EXPECT_DOUBLE_EQ(report.weighted_avg.f1, 0.8);
  EXPECT_THAT(report.confusion, ElementsAre(ElementsAre(2, 0, 1), ElementsAre(0, 0, 0), ElementsAre(0, 0, 0)));
}

TEST(ClassificationReportTest, MeasuresNamesInCodePoints) {
  const std::string text = classification_report(ClassIds{0}, ClassIds{1}, {"一二三四五六七八九十一二三", "é"}).to_text(0);
  EXPECT_THAT(text, testing::HasSubstr("\n一二三四五六七八九十一二三          0 "));
  EXPECT_THAT(text, testing::HasSubstr("\n            é          0 "));
}

TEST(ClassificationReportTest, KeepsItsTableWhateverClassesAreCalled) {
  const std::string longest(200, 'x');
  const std::string text = classification_report(ClassIds{0, 1}, ClassIds{0, 1}, {"two\nlines\x1b[31m", longest}).to_text();
  EXPECT_THAT(text, testing::HasSubstr("\n" + std::string(27, ' ') + "two lines[31m       1.00      1.00"));
  EXPECT_THAT(text, testing::HasSubstr("\n" + std::string(39, 'x') + "…       1.00"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 8);
}

TEST(ClassificationReportTest, RefusesWhatItCannotCount) {
  const ScratchFolder none;
  const auto error = [&](const ClassIds& y_true, const ClassIds& y_pred) {
    return value_error([&] { classification_report(y_true, y_pred, {"a", "b"}); }, none);
  };
  EXPECT_EQ(error({0}, {0, 1}), "classification_report: 1 true labels but 2 predicted ones.");
  EXPECT_EQ(error({}, {}), "classification_report: no rows to report on.");
  EXPECT_EQ(error({0, 2}, {0, 1}),
            "classification_report: row 2 has label 2, but there are names for labels 0 to 1 only.");
  EXPECT_EQ(error({0}, {-1}), "classification_report: row 1 has label -1, but there are names for labels 0 to 1 only.");
  EXPECT_EQ(value_error([] { classification_report(ClassIds{0}, ClassIds{0}, {"a"}).to_text(-1); }, none),
            "classification_report: digits must be from 0 to 100, got -1.");
}

TEST(ClassificationReportTest, TakesNoMatrixsRoomForVeryManyLabels) {
  std::vector<std::string> names(90'000);
  for (size_t i = 0; i < names.size(); ++i) names[i] = std::to_string(i);
  // A matrix of these would take 65 GB.
  const auto report = classification_report(ClassIds{0, 89'999, 89'999}, ClassIds{0, 89'999, 1}, names);
  EXPECT_TRUE(report.confusion.empty());
  EXPECT_DOUBLE_EQ(report.accuracy, 2.0 / 3);
  EXPECT_THAT(report.names, ElementsAre("0", "1", "89999"));
  EXPECT_DOUBLE_EQ(report.classes[2].recall, 0.5);
  EXPECT_EQ(report.classes[2].support, 2);
  EXPECT_EQ(report.classes[1].precision, 0);
}

TEST(IsBetterTest, OrdersByTheMetricThenByTheLoss) {
  const ModelScore best_first[] = {{0.9, 2},    {0.5, 0.1},   {0.5, 0.3},  {0.5, kInf},
                                   {0.5, kNaN}, {kNaN, 0.01}, {kNaN, 0.02}};
  for (size_t i = 0; i < std::size(best_first); ++i) {
    for (size_t j = 0; j < std::size(best_first); ++j) {
      EXPECT_EQ(is_better(best_first[i], best_first[j], /*greater_is_better=*/true), i < j) << i << " " << j;
    }
  }
  EXPECT_TRUE(is_better({0.1, 2}, {0.2, 1}, /*greater_is_better=*/false));
  EXPECT_TRUE(is_better({0.1, 1}, {0.1, 2}, /*greater_is_better=*/false));
  EXPECT_FALSE(is_better({kNaN, 1}, {0.2, 2}, /*greater_is_better=*/false));
}

}  // namespace
}  // namespace mezzo::text
