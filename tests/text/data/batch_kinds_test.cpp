#include "text/data/batch_kinds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace mezzo::text {
namespace {

using testing::Pair;
using testing::UnorderedElementsAre;

constexpr int64_t kMaxTokens = 512;

auto pair_of(BatchSize size) { return std::pair(size.rows, size.longest); }

std::set<std::pair<int64_t, int64_t>> kinds_of(const BatchKinds& kinds, const std::vector<BatchSize>& sizes) {
  std::set<std::pair<int64_t, int64_t>> found;
  for (const BatchSize& size : sizes) {
    found.insert(pair_of(kinds.round_up(size)));
  }
  return found;
}

/// Batches of 32 texts, rows rounded to 32.
std::vector<BatchSize> batches(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::lognormal_distribution<double> tokens(2.8, 0.6);
  std::vector<BatchSize> sizes;
  for (int i = 0; i < count; ++i) {
    BatchSize size{0, 0};
    for (int text = 0; text < 32; ++text) {
      const auto length = std::clamp<int64_t>(static_cast<int64_t>(tokens(random)), 3, 128);
      size.rows += length;
      size.longest = std::max(size.longest, length);
    }
    size.rows = (size.rows + 31) / 32 * 32;
    sizes.push_back(size);
  }
  return sizes;
}

TEST(BatchKindsTest, HoldWhatIsRoundedUpToThem) {
  const auto seen = batches(1000, 1), others = batches(1000, 2);
  const BatchKinds kinds(seen, kMaxTokens);
  for (const auto& sizes : {seen, others}) {
    for (const BatchSize& size : sizes) {
      const auto [rows, longest] = kinds.round_up(size);
      ASSERT_GE(rows, size.rows);
      ASSERT_GE(longest, size.longest);
      ASSERT_EQ(pair_of(kinds.round_up({rows, longest})), std::pair(rows, longest)) << "a kind is one of its own";
    }
  }
}

TEST(BatchKindsTest, AreFewWithLittleFillerAndServeLaterStepsToo) {
  const auto seen = batches(1000, 1), later = batches(1000, 3);
  const BatchKinds kinds(seen, kMaxTokens);
  const auto found = kinds_of(kinds, seen);
  EXPECT_LE(found.size(), 20U) << "as many as 5 % of filler would be worth at 0.25 % each";
  int64_t rows = 0, filler = 0, missed = 0;
  for (const BatchSize& size : later) {
    const auto kind = kinds.round_up(size);
    rows += size.rows;
    filler += kind.rows - size.rows;
    missed += found.contains(pair_of(kind)) ? 0 : 1;
  }
  EXPECT_LT(static_cast<double>(filler) / static_cast<double>(rows), 0.03);
  EXPECT_LE(missed, 5) << "of the largest in a thousand others, few are larger";
}

/// Of all ways to choose among the numbers that come up.
TEST(BatchKindsTest, CostNoMoreThanAnyOthers) {
  const std::vector<BatchSize> seen{{96, 20},  {96, 20},  {128, 20}, {160, 20},
                                    {320, 20}, {352, 20}, {352, 20}, {640, 20}};
  double all_rows = 0;
  for (const BatchSize& size : seen) {
    all_rows += static_cast<double>(size.rows);
  }
  const auto cost_of = [&](const std::set<int64_t>& kinds) {
    double cost = 0.0025 * all_rows * static_cast<double>(kinds.size());
    for (const BatchSize& size : seen) {
      const auto kind = kinds.lower_bound(size.rows);
      cost += kind == kinds.end() ? std::numeric_limits<double>::infinity() : static_cast<double>(*kind - size.rows);
    }
    return cost;
  };
  const std::vector<int64_t> numbers{96, 128, 160, 320, 352, 640};
  double best = std::numeric_limits<double>::infinity();
  for (unsigned chosen = 0; chosen < 1U << numbers.size(); ++chosen) {
    std::set<int64_t> some;
    for (size_t i = 0; i < numbers.size(); ++i) {
      if ((chosen >> i & 1U) != 0) {
        some.insert(numbers[i]);
      }
    }
    best = std::min(best, cost_of(some));
  }
  const BatchKinds kinds(seen, kMaxTokens);
  std::set<int64_t> rows;
  for (const auto& [number, longest] : kinds_of(kinds, seen)) {
    rows.insert(number);
  }
  EXPECT_DOUBLE_EQ(cost_of(rows), best);
}

TEST(BatchKindsTest, RareLengthsHaveNoneOfTheirOwn) {
  std::vector<BatchSize> seen(99, {64, 40});
  seen.push_back({64, 30});
  EXPECT_THAT(kinds_of(BatchKinds(seen, kMaxTokens), seen), UnorderedElementsAre(Pair(64, 64)));
  seen.push_back({64, 30});
  seen.push_back({64, 30});
  EXPECT_THAT(kinds_of(BatchKinds(seen, kMaxTokens), seen), UnorderedElementsAre(Pair(64, 64), Pair(64, 32)));
  seen.push_back({64, 100});
  EXPECT_EQ(pair_of(BatchKinds(seen, kMaxTokens).round_up({64, 100})), std::pair(int64_t{64}, int64_t{128}))
      << "the longest have nothing to go with";
}

TEST(BatchKindsTest, SmallBatchesOfAllSizesShareKinds) {
  std::vector<BatchSize> seen;
  for (int64_t rows = 33; rows <= 64; ++rows) {
    seen.push_back({rows, 20});
  }
  EXPECT_THAT(kinds_of(BatchKinds(seen, kMaxTokens), seen), UnorderedElementsAre(Pair(64, 32)));
}

TEST(BatchKindsTest, SizesThatNobodyExpectedAreRoundedToFew) {
  const BatchKinds kinds({{64, 40}}, 500);
  EXPECT_EQ(pair_of(kinds.round_up({65, 40})), std::pair(int64_t{96}, int64_t{64}));
  EXPECT_EQ(pair_of(kinds.round_up({1000, 300})), std::pair(int64_t{1024}, int64_t{500}))
      << "no more than there may be";
  std::set<std::pair<int64_t, int64_t>> found;
  for (int64_t rows = 512; rows <= 2048; ++rows) {
    found.insert(pair_of(BatchKinds({}, kMaxTokens).round_up({rows, 100})));
  }
  EXPECT_LE(found.size(), 17U);
}

}  // namespace
}  // namespace mezzo::text
