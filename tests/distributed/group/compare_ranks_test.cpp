#include "distributed/group/compare_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distributed/rank_threads.h"

namespace mezzo::distributed {
namespace {

using testing::Each;
using testing::IsEmpty;
using Lines = std::vector<std::string>;

TEST(CompareRanksTest, FindsTheFirstLineThatDiffersOnEveryRank) {
  struct Case {
    std::vector<Lines> by_rank;
    std::optional<RankDifference> expected;
  };
  const std::string zero("a\0b", 3);
  const std::vector<Case> cases{
      {{{}, {}, {}}, std::nullopt},
      {{{"a", "b"}, {"a", "b"}, {"a", "b"}}, std::nullopt},
      {{{"a", "b"}, {"a", "b"}, {"a", "c"}}, {{2, "b", "c"}}},
      {{{"a", "b"}, {"x", "b"}, {"a", "c"}}, {{1, "a", "x"}}},
      {{{"a", "b"}, {"a"}, {"a", "b"}}, {{1, "b", std::nullopt}}},
      {{{}, {""}, {}}, {{1, std::nullopt, ""}}},
      {{{"1:a", zero, "a\nb"}, {"1:a", zero, "a\nb"}, {"1:a", zero, "a", "b"}}, {{2, "a\nb", "a"}}},
      {{{"11:a"}, {"1", ":a"}, {"11:a"}}, {{1, "11:a", "1"}}},
  };
  const auto errors = RankThreads{.world_size = 3}.run([&](ProcessGroup& group) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const auto found = compare_ranks(group, cases[i].by_rank[group.rank()]);
      const auto& expected = cases[i].expected;
      ASSERT_EQ(found.has_value(), expected.has_value()) << "case " << i;
      if (found) {
        EXPECT_EQ(found->rank, expected->rank) << "case " << i;
        EXPECT_EQ(found->here, expected->here) << "case " << i;
        EXPECT_EQ(found->there, expected->there) << "case " << i;
      }
    }
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

}  // namespace
}  // namespace mezzo::distributed
