#include "text/tasks/surest.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mezzo::text {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(SurestTest, TheSurestComeFirstAndOfEquallySureOnesTheFirst) {
  const auto sureness = at::tensor({0.1, 0.5, 0.99, 0.7, 0.5, 0.9}, at::kDouble);
  const auto is_wrong = at::tensor({0, 1, 0, 1, 1, 1}).to(at::kBool);
  EXPECT_THAT(surest(is_wrong, sureness), ElementsAre(5, 3, 1, 4));
  EXPECT_THAT(surest(at::zeros({6}, at::kBool), sureness), IsEmpty());
}

TEST(SurestTest, TwentyAtMostAreKept) {
  const auto kept = surest(at::ones({100}, at::kBool), at::arange(100, at::kDouble).remainder(50));
  ASSERT_EQ(kept.size(), 20u);
  EXPECT_EQ(kept.front(), 49);
  EXPECT_EQ(kept[1], 99);
  EXPECT_EQ(kept.back(), 90);
}

}  // namespace
}  // namespace mezzo::text
