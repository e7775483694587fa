#include "mezzo/text/tasks/single_label_classification.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "mezzo/text/models/bert_config.h"
#include "mezzo/text/tasks/multi_label_classification.h"
#include "mezzo/text/tasks/regression.h"
#include "not_finite.h"
#include "text/scratch_folder.h"

namespace mezzo::text {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::IsNan;

LabeledRows rows_with(std::vector<RawLabel> labels) {
  LabeledRows result;
  result.places.file = "f";
  for (RawLabel& label : labels) {
    result.places.lines.push_back(static_cast<int64_t>(result.places.lines.size()) + 1);
    result.texts.push_back("text " + std::to_string(result.places.lines.back()));
    result.labels.push_back(std::move(label));
  }
  return result;
}

std::shared_ptr<const Task> trained(std::vector<std::string> label_names) {
  BertConfig config;
  config.label_names = std::move(label_names);
  return make_task(config);
}

TEST(SingleLabelClassificationTest, TakesItsLabelsFromTheDataOrFromTheTrainedModel) {
  const LabeledRows data = rows_with({"sad", "joy", "sad"});
  const auto from_data = make_task(data);
  EXPECT_EQ(from_data->problem_type(), "single_label_classification");
  EXPECT_THAT(from_data->label_names(), ElementsAre("joy", "sad"));
  EXPECT_TRUE(at::equal(from_data->targets(data), at::tensor({1, 0, 1}, at::kLong)));
  const auto trained = make_task(data, {.label_names = {"sad", "joy", "fear"}});
  EXPECT_TRUE(at::equal(trained->targets(data), at::tensor({0, 1, 0}, at::kLong)));
  EXPECT_THAT(trained->untrained(trained->targets(data), ""),
              ElementsAre("1 of 3 labels has no training text: 'fear'"));
}

TEST(SingleLabelClassificationTest, RefusesWhatItIsNotFor) {
  const ScratchFolder none;
  EXPECT_EQ(value_error([] { make_task(rows_with({"joy", "joy"})); }, none),
            "f: all texts have the same label, 'joy'; training needs different labels");
  BertConfig config;
  config.problem_type = "chess";
  EXPECT_EQ(
      value_error([&] { make_task(config); }, none),
      "problem_type is \"chess\", mezzo supports: single_label_classification, multi_label_classification, regression, "
      "token_classification");
}

TEST(SingleLabelClassificationTest, SumsTheLossOfEachTextInFloat32) {
  const auto task = trained({"a", "b"});
  PackedBatch batch;
  batch.targets = at::tensor({0, 1, 1}, at::kLong);
  const auto outputs = at::tensor({2.f, 1.f, 0.5f, 0.25f, -3.f, 4.f}).view({3, 2}).to(at::kBFloat16);
  const auto loss = task->loss(outputs, batch);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  const double expected = std::log1p(std::exp(-1.)) + std::log1p(std::exp(0.25)) + std::log1p(std::exp(-7.));
  EXPECT_NEAR(loss.item<double>(), expected, 1e-6) << "a few roundings of float32";
}

TEST(SingleLabelClassificationTest, EvaluatesWithoutNumbersWhereAnOutputIsNotFinite) {
  const auto task = trained({"a", "b"});
  const auto targets = at::tensor({0, 1}, at::kLong);
  const Evaluation good = task->evaluate(at::tensor({2.f, 1.f, 3.f, 1.f}).view({2, 2}), targets);
  EXPECT_EQ(good.metrics.front(), 0.5);
  EXPECT_THAT(good.confusion_matrix, ElementsAre(ElementsAre(1, 0), ElementsAre(1, 0)));
  const Evaluation bad = task->evaluate(at::tensor({2.f, 1.f, kInf, 1.f}).view({2, 2}), targets);
  EXPECT_FALSE(std::isfinite(bad.loss));
  EXPECT_THAT(bad.metrics, ElementsAre(IsNan(), IsNan()));
  EXPECT_THAT(bad.report, IsEmpty());
}

TEST(SingleLabelClassificationTest, KeepsTheLowerLossOfEqualsThenTheFirstAndNeverALossThatIsNotFinite) {
  const auto task = trained({"a", "b"});
  const ModelScore best{0.5, 0.005};
  EXPECT_TRUE(task->is_better({0, 9}, std::nullopt));
  EXPECT_TRUE(task->is_better({0.6, 9}, best));
  EXPECT_TRUE(task->is_better({0.5, 0.0006}, best));
  EXPECT_FALSE(task->is_better({0.5, 0.005}, best));
  EXPECT_FALSE(task->is_better({0.4, 0.0006}, best));
  EXPECT_FALSE(task->is_better({kNaN, kNaN}, std::nullopt));
  EXPECT_FALSE(task->is_better({1, kInf}, best));
}

TEST(SingleLabelClassificationTest, KeepsTheLowerLossIfOneOfTwoMetricsIsUndefined) {
  const Regression task("pearson");
  EXPECT_TRUE(task.is_better({kNaN, 0.5}, std::nullopt));
  EXPECT_TRUE(task.is_better({kNaN, 0.4}, ModelScore{kNaN, 0.5}));
  EXPECT_TRUE(task.is_better({kNaN, 0.1}, ModelScore{0.2, 2.4}));
  EXPECT_FALSE(task.is_better({kNaN, 2.5}, ModelScore{0.2, 2.4}));
  EXPECT_TRUE(task.is_better({-0.1, 0.4}, ModelScore{kNaN, 0.5}));
  EXPECT_FALSE(task.is_better({0.9, 0.6}, ModelScore{kNaN, 0.5}));
  EXPECT_TRUE(task.is_better({0.9, 0.6}, ModelScore{0.8, 0.5}));
}

TEST(SingleLabelClassificationTest, SaysWhereTheMetricThatDecidesIsNotDefined) {
  const auto labels = [] { return LabelMap::from_names({"a", "b", "c"}); };
  const SingleLabelClassification by_area(labels(), "roc_auc"), by_accuracy(labels());
  EXPECT_EQ(by_area.why_undefined(at::tensor({0, 1, 2}, at::kLong)), "");
  EXPECT_EQ(by_area.why_undefined(at::tensor({0, 1, 1}, at::kLong)), "1 of 3 labels has no text: 'c'");
  EXPECT_EQ(by_accuracy.why_undefined(at::tensor({0, 0}, at::kLong)), "");
  const MultiLabelClassification of_several(labels(), "roc_auc");
  EXPECT_EQ(of_several.why_undefined(at::tensor({1.f, 0.f, 1.f, 1.f, 1.f, 0.f}).view({2, 3})),
            "all texts have label 'a'");
  EXPECT_EQ(of_several.why_undefined(at::tensor({1.f, 0.f, 1.f, 0.f, 0.f, 0.f}).view({2, 3})),
            "1 of 3 labels has no text: 'b'");
  for (const char* metric : {"pearson", "spearman"}) {
    const Regression task(metric);
    EXPECT_EQ(task.why_undefined(at::tensor({2.5f, 3.f})), "");
    EXPECT_EQ(task.why_undefined(at::tensor({2.5f, 2.5f})), "all numbers are 2.5");
    EXPECT_EQ(task.why_undefined(at::tensor({2.5f})), "there is one text");
  }
  EXPECT_EQ(Regression().why_undefined(at::tensor({2.5f})), "");
}

TEST(SingleLabelClassificationTest, PredictsTheLabelItsScoreAndTheScoresOfAll) {
  const auto task = trained({"a", "b"});
  const auto predictions = task->predictions(at::tensor({0.f, 0.f, -1.f, 30.f}).view({2, 2}), {}, {});
  ASSERT_EQ(predictions.size(), 2u);
  const std::vector<std::pair<std::string, double>> even = {{"a", 0.5}, {"b", 0.5}};
  EXPECT_EQ(predictions[0], (Prediction{{"label", "a"}, {"score", 0.5}, {"scores", even}}));
  EXPECT_EQ(std::get<std::string>(predictions[1][0].second), "b");
}

}  // namespace
}  // namespace mezzo::text
