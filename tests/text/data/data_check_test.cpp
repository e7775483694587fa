#include "text/data/data_check.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/data/raw_labels.h"
#include "text/scratch_folder.h"

namespace mezzo::text {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// Rows of a file f, from line 2 on.
LabeledRows rows(std::vector<std::pair<std::string, RawLabel>> pairs) {
  LabeledRows result;
  result.places.file = "f";
  for (auto& [text, label] : pairs) {
    result.texts.push_back(std::move(text));
    result.labels.push_back(std::move(label));
    result.places.lines.push_back(static_cast<int64_t>(result.texts.size()) + 1);
  }
  return result;
}

const LabelMap kJoyAnger = LabelMap::from_names({"joy", "anger"});

TEST(DataCheckTest, RefusesDataThatTeachesNothing) {
  const ScratchFolder none;
  const auto error = [&](const LabeledRows& data) {
    return value_error([&] { check_has_text(data), check_labels_differ(data); }, none);
  };
  EXPECT_EQ(error(rows({{"", id(0)}, {" \n\u3000", id(1)}})),
            "f: all of its 2 texts are empty, so there is nothing to learn from. Is 'text' the right column?");
  EXPECT_EQ(error(rows({{"a", name("joy")}, {"b", name("joy")}})),
            "f: all texts have the same label, 'joy'; training needs different labels");
  EXPECT_EQ(error(rows({{"a", id(1)}})), "f: its only text has the label '1'; training needs different labels");
  EXPECT_EQ(error(rows({{"", id(0)}, {"a", id(1)}})), "(nothing was thrown)");
}

TEST(DataCheckTest, FindsNothingOddInOrdinaryRows) {
  EXPECT_THAT(odd_rows(rows({{"a", name("joy")}, {"b", name("anger")}, {"A", name("joy")}}), kJoyAnger), IsEmpty());
  EXPECT_THAT(odd_rows(rows({{"a", id(0)}, {"b", id(1)}}), LabelMap::from_names({"0", "1"})), IsEmpty());
  EXPECT_THAT(odd_rows(rows({{"a", id(0)}, {"b", id(1)}}), LabelMap::from_names({"LABEL_0", "LABEL_1"})), IsEmpty());
  EXPECT_THAT(odd_rows(rows({{"a", id(5)}, {"b", id(1)}}), kJoyAnger), IsEmpty()) << "the task refuses the label";
}

TEST(DataCheckTest, CountsEmptyRepeatedAndContradictingTexts) {
  const auto data = rows({{"a", name("joy")},
                          {"", name("joy")},
                          {"b", name("joy")},
                          {"a", name("joy")},
                          {" ", name("anger")},
                          {"a", name("anger")},
                          {"b", name("joy")},
                          {"a", name("joy")}});
  EXPECT_THAT(odd_rows(data, kJoyAnger),
              ElementsAre("2 of 8 texts in f are empty, the first at f:3",
                          "3 of 8 texts in f repeat an earlier text with the same label, such as f:5 and f:2",
                          "1 of 8 texts in f repeats an earlier text with another label, such as f:7 ('anger') and f:2 "
                          "('joy')"));
}

TEST(DataCheckTest, CountsLabelsThatOnlyWhiteSpaceOrCaseTellsApart) {
  const auto data = rows({{"a", name("joy")}, {"b", name("anger")}, {"c", name("joy ")}, {"d", name("Anger")}});
  EXPECT_THAT(odd_rows(data, LabelMap::from_rows(data)),
              ElementsAre("2 of 4 labels in f differ from another label only in white space or case, such as 'anger' "
                          "at f:3 and 'Anger' at f:5"));
}

TEST(DataCheckTest, IsSilentAboutSpellingsThatAreOneClass) {
  const auto data = rows({{"a", name("TRUE")}, {"b", name("true")}, {"c", id(1)}, {"d", name("FALSE")}, {"e", id(0)}});
  EXPECT_THAT(odd_rows(data, LabelMap::from_rows(data)), IsEmpty());
}

TEST(DataCheckTest, AsksForTheLabelColumnIfMostTextsHaveTheirOwnLabel) {
  std::vector<std::pair<std::string, RawLabel>> pairs;
  for (int i = 0; i < 40; ++i) pairs.emplace_back("text", id(i < 19 ? 0 : i));
  EXPECT_EQ(labels_like_identifiers(rows(pairs), "label"),
            "40 texts in f have 22 different labels; is 'label' the right column? --label-column names it");
  pairs[20].second = id(0);
  EXPECT_EQ(labels_like_identifiers(rows(pairs), "label"), "") << "20 of 40";
  pairs.resize(0);
  for (int i = 0; i < 19; ++i) pairs.emplace_back("text", id(i));
  EXPECT_EQ(labels_like_identifiers(rows(pairs), "label"), "") << "few texts";
}

TEST(DataCheckTest, SaysWhatIntegersStandForWhereLabelsHaveNames) {
  EXPECT_THAT(odd_rows(rows({{"a", id(1)}, {"b", id(0)}}), kJoyAnger),
              ElementsAre("the labels in f are numbers, read as positions in the model's list of labels: 0 is 'joy', "
                          "1 is 'anger'"));
  std::vector<std::string> names;
  for (int i = 0; i < 11; ++i) names.push_back("topic " + std::to_string(i));
  EXPECT_EQ(
      note_of_positions(rows({{"a", id(7)}}), names),
      "the labels in f are numbers, read as positions in the model's list of labels: 7 is 'topic 7', first at f:2");
  EXPECT_EQ(note_of_positions(rows({{"a", name("joy")}}), kJoyAnger.names()), "");
}

TEST(DataCheckTest, RefusesFractionsForClasses) {
  const ScratchFolder none;
  const auto error = [&](const std::vector<std::string>& labels) {
    std::vector<std::pair<std::string, RawLabel>> pairs;
    for (const std::string& label : labels) pairs.emplace_back("text", name(label));
    const auto data = rows(pairs);
    return value_error([&] { check_are_classes(data, LabelMap::from_rows(data), "--task"); }, none);
  };
  const std::string advice =
      " different ones. Pass --task regression to predict numbers, or --task single_label_classification to train a "
      "class for each.";
  EXPECT_EQ(error({"0.25", "0.5", "0.75", "1"}), "f: the labels are numbers such as 0.75, 4" + advice);
  EXPECT_EQ(error({"0,25", "0,5", "0,75", "1"}),
            "f: the labels are numbers such as 0,75, 4 different ones. Write 0.75 with a point. Pass --task regression "
            "to predict numbers, or --task single_label_classification to train a class for each.");
  std::vector<std::string> many;
  for (int i = 0; i < 200; ++i) many.push_back(std::to_string(i % 21) + ".5");
  EXPECT_EQ(error(many), "f: the labels are numbers such as 20.5, 21" + advice);
  std::vector<std::string> stars;
  for (int i = 0; i < 40; ++i) stars.push_back(i % 2 == 0 ? std::to_string(i % 5) : std::to_string(i % 5) + ".5");
  for (const auto& classes : {stars, {"1.0", "2.0", "3.0"}, {"1", "2", "3"}, {"0.5", "1.5", "2.5", "x"}}) {
    EXPECT_EQ(error(classes), "(nothing was thrown)");
  }
}

TEST(DataCheckTest, KeepsALineOfWhateverTheLabelsHold) {
  const std::string label = "two\nlines" + std::string(200, 'x');
  const auto lines = odd_rows(rows({{"a", name(label)}, {"b", name(label + "\t")}}), kJoyAnger);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].find('\n'), std::string::npos);
  EXPECT_LT(lines[0].size(), 250u);
}

TEST(DataCheckTest, CountsTextsThatTrainingHasToo) {
  const Dataset train{{"a", "", "b"}, {}, {}, {"t", {2, 3, 4}}};
  EXPECT_THAT(shared_texts(train, {{"c", "b", "", "b"}, {}, {}, {"d", {2, 3, 4, 5}}}, "dev"),
              ElementsAre("2 of 4 dev texts also occur in training, such as d:3 and t:4: dev scores are optimistic"));
  EXPECT_THAT(shared_texts(train, {{"c", ""}, {}, {}, {"d", {2, 3}}}, "dev"), IsEmpty());
}

TEST(DataCheckTest, TakesAPairForTheSameWhereBothItsTextsAre) {
  LabeledRows pairs = rows({{"a", name("joy")}, {"a", name("anger")}, {"a", name("anger")}, {"", name("joy")}});
  pairs.text_pairs = {"b", "b", "c", ""};
  EXPECT_THAT(odd_rows(pairs, kJoyAnger),
              ElementsAre("1 of 4 texts in f is empty, the first at f:5",
                          "1 of 4 texts in f repeats an earlier text with another label, such as f:3 ('anger') and f:2 "
                          "('joy')"));
  const Dataset train{{"a"}, {"b"}, {}, {"t", {2}}};
  EXPECT_THAT(shared_texts(train, {{"a"}, {"c"}, {}, {"d", {2}}}, "dev"), IsEmpty());
  EXPECT_EQ(shared_texts(train, {{"a"}, {"b"}, {}, {"d", {2}}}, "dev").size(), 1u);
}

TEST(DataCheckTest, NamesLabelsWithoutATrainingText) {
  EXPECT_THAT(labels_without_text({true, false}, kJoyAnger, "training text left"),
              ElementsAre("1 of 2 labels has no training text left: 'anger'"));
  EXPECT_THAT(labels_without_text({true, true}, kJoyAnger, "training text"), IsEmpty());
}

}  // namespace
}  // namespace mezzo::text
