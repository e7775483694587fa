#include "mezzo/text/io/nearest_name.h"

#include <gtest/gtest.h>

namespace mezzo::text {
namespace {

const std::vector<std::string> kNames = {"train", "eval", "learning-rate", "layer-lr-decay", "text", "label"};

TEST(NearestNameTest, FindsWhatAMisspelledNameMeans) {
  EXPECT_EQ(nearest_name("trian", kNames), "train");  // two letters swapped
  EXPECT_EQ(nearest_name("learning-rat", kNames), "learning-rate");
  EXPECT_EQ(nearest_name("Learning_Rate", kNames), "learning-rate");
  EXPECT_EQ(nearest_name("TEXT", kNames), "text");
  EXPECT_EQ(nearest_name("lable", kNames), "label");
}

TEST(NearestNameTest, FindsNothingForANameFarFromAll) {
  EXPECT_EQ(nearest_name("sentence", kNames), std::nullopt);
  EXPECT_EQ(nearest_name("", kNames), std::nullopt);
  EXPECT_EQ(nearest_name("tree", kNames), std::nullopt);  // two edits of four letters
  EXPECT_EQ(nearest_name("text", {}), std::nullopt);
  EXPECT_EQ(nearest_name(std::string(10'000'000, 'x'), kNames), std::nullopt);
}

TEST(NearestNameTest, PrefersTheNearestAndOfEqualsTheFirst) {
  const std::vector<std::string> names = {"fp64", "fp32", "fp16"};
  EXPECT_EQ(nearest_name("FP16", names), "fp16");
  EXPECT_EQ(nearest_name("fp12", names), "fp32");
}

TEST(NearestNameTest, TakesTheMostEditsThatAreNear) {
  const std::vector<std::string> names = {"--ema-decay"};
  EXPECT_EQ(nearest_name("--lr-decay", names), "--ema-decay");
  EXPECT_EQ(nearest_name("--lr-decay", names, /*most=*/2), std::nullopt);
}

TEST(NearestNameTest, AsksTheQuestionOfAMessage) {
  EXPECT_EQ(did_you_mean("trian", kNames), " Did you mean 'train'?");
  EXPECT_EQ(did_you_mean("sentence", kNames), "");
}

}  // namespace
}  // namespace mezzo::text
