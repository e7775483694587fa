#include "text/tasks/surest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mezzo::text {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

TEST(SurestTest, TheSurestComeFirstAndOfEquallySureOnesTheFirst) {
  EXPECT_THAT(surest({{0.5, 4}, {0.9, 7}, {0.5, 1}, {0.7, 2}}),
              ElementsAre(Pair(0.9, 7), Pair(0.7, 2), Pair(0.5, 1), Pair(0.5, 4)));
  EXPECT_THAT(surest({}), IsEmpty());
}

TEST(SurestTest, TwentyAtMostAreKept) {
  std::vector<SureMistake> wrong;
  for (int64_t i = 0; i < 100; ++i) wrong.emplace_back(static_cast<double>(i % 50) / 50, i);
  const auto kept = surest(wrong);
  ASSERT_EQ(kept.size(), kMostMistakes);
  EXPECT_THAT(kept.front(), Pair(0.98, 49));
  EXPECT_THAT(kept[1], Pair(0.98, 99));
  EXPECT_THAT(kept.back(), Pair(0.8, 90));
}

}  // namespace
}  // namespace mezzo::text
