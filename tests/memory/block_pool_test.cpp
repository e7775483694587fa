#include "memory/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace mezzo {
namespace {

constexpr size_t kPage = PageSource::kPage, kMiB = size_t{1} << 20;

/// Addresses that are never written to, and a record of which would have memory behind them.
class CountedPages : public PageSource {
 public:
  explicit CountedPages(size_t longest = size_t{1} << 40) : longest_(longest) {}

  char* reserve(size_t size) override {
    EXPECT_EQ(size % kPage, 0);
    if (size > longest_) {
      return nullptr;
    }
    segments.push_back(size);
    next_ += kPage;  // segments do not touch each other
    return reinterpret_cast<char*>(std::exchange(next_, next_ + size));
  }
  bool commit(char* begin, size_t size) override {
    if (pages.size() * kPage + size > limit) {
      return false;
    }
    for_each(begin, size, [&](size_t page) { EXPECT_TRUE(pages.insert(page).second) << "has memory already"; });
    return true;
  }
  void give_back(char* begin, size_t size) override {
    for_each(begin, size, [&](size_t page) { EXPECT_EQ(pages.erase(page), 1) << "has no memory"; });
    ++times_given_back;
  }

  size_t committed() const { return pages.size() * kPage; }
  bool has_memory(const BlockPool::Block& block) const {
    const auto begin = reinterpret_cast<size_t>(block.data);
    for (size_t page = begin / kPage; page * kPage < begin + block.size; ++page) {
      if (!pages.contains(page)) {
        return false;
      }
    }
    return true;
  }

  std::set<size_t> pages;
  std::vector<size_t> segments;
  size_t limit = size_t{1} << 40;
  int times_given_back = 0;

 private:
  static void for_each(char* begin, size_t size, const std::function<void(size_t)>& visit) {
    ASSERT_EQ(reinterpret_cast<size_t>(begin) % kPage + size % kPage, 0);
    for (size_t i = 0; i < size / kPage; ++i) {
      visit(reinterpret_cast<size_t>(begin) / kPage + i);
    }
  }

  size_t longest_, next_ = size_t{1} << 30;
};

TEST(BlockPoolTest, BlocksNeverOverlapAndJoinAgainWhateverTheOrder) {
  constexpr size_t kSegment = 8 * kPage;
  std::mt19937_64 random(1);
  for (int round = 0; round < 20; ++round) {
    CountedPages source;
    BlockPool pool(source, kSegment);
    std::vector<BlockPool::Block*> live;
    for (int i = 0; i < 2000; ++i) {
      if (live.empty() || random() % 5 < 3) {
        const size_t size = random() % (round % 2 ? 3000 : 300000) + 1;
        auto* block = pool.allocate(size);
        ASSERT_GE(block->size, size);
        ASSERT_LT(block->size, size + BlockPool::kGranule);
        live.push_back(block);
      } else {
        std::swap(live[random() % live.size()], live.back());
        pool.free(live.back());
        live.pop_back();
      }
    }
    auto sorted = live;
    std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->data < b->data; });
    for (size_t i = 0; i < sorted.size(); ++i) {
      ASSERT_TRUE(source.has_memory(*sorted[i]));
      ASSERT_TRUE(i == 0 || sorted[i - 1]->data + sorted[i - 1]->size <= sorted[i]->data);
    }
    std::shuffle(live.begin(), live.end(), random);
    for (auto* block : live) {
      pool.free(block);
    }
    EXPECT_EQ(pool.in_use(), 0);
    // Every segment is whole again, so each can be had in pieces of half its size.
    const size_t segments = source.segments.size();
    for (size_t i = 0; i < 2 * segments; ++i) {
      EXPECT_EQ(pool.allocate(kSegment / 2)->size, kSegment / 2);
    }
    EXPECT_EQ(source.segments.size(), segments);
  }
}

TEST(BlockPoolTest, TakesTheSmallestBlockThatFits) {
  CountedPages source;
  BlockPool pool(source, 8 * kPage);
  auto *large = pool.allocate(100 << 10), *wall = pool.allocate(1), *small = pool.allocate(10 << 10);
  pool.allocate(1);
  char *small_data = small->data, *large_data = large->data;
  pool.free(large);
  pool.free(small);
  EXPECT_EQ(pool.allocate(9 << 10)->data, small_data);
  EXPECT_EQ(pool.allocate(99 << 10)->data, large_data);
  (void)wall;
}

TEST(BlockPoolTest, OneSizeAfterAnotherTakesNoMoreThanTheLargest) {
  CountedPages source;
  BlockPool pool(source, size_t{64} << 30);
  for (size_t size = 16; size <= 160; ++size) {
    pool.free(pool.allocate(size * kMiB + 64));
  }
  EXPECT_LE(pool.committed(), 160 * kMiB + kPage);
  EXPECT_EQ(source.times_given_back, 0) << "each piece begins where the one before began";
}

TEST(BlockPoolTest, StaysNearItsPeakOverTenThousandSizes) {
  std::mt19937_64 random(7);
  const auto between = [&](double least, double most) {  // small sizes as often as large ones
    return static_cast<size_t>(std::exp(std::uniform_real_distribution(std::log(least), std::log(most))(random)));
  };
  CountedPages source;
  BlockPool pool(source, size_t{64} << 30);
  std::vector<BlockPool::Block*> live;
  size_t late = 0, early = 0;
  for (int i = 0; i < 10000; ++i) {
    const size_t many = 1 + random() % 60;  // live at a time
    while (live.size() >= many) {
      std::swap(live[random() % live.size()], live.back());
      pool.free(live.back());
      live.pop_back();
    }
    live.push_back(pool.allocate(between(16 << 10, 160 * kMiB)));
    ASSERT_EQ(pool.committed(), source.committed());
    ASSERT_LE(pool.committed(), pool.peak_in_use() * 3 / 2 + 64 * kMiB + 2 * live.size() * kPage) << i;
    (i < 2000 ? early : late) = std::max(i < 2000 ? early : late, pool.committed());
  }
  EXPECT_LE(late, early * 3 / 2) << "flat: the last eight thousand need no more than luck with sizes explains";
  EXPECT_LE(source.segments.size(), 2) << "of addresses, too";
}

TEST(BlockPoolTest, RepeatsAStepWithoutTakingOrGivingBack) {
  std::mt19937_64 random(3);
  CountedPages source;
  BlockPool pool(source, size_t{64} << 30);
  std::vector<BlockPool::Block*> weights;
  for (int i = 0; i < 40; ++i) {
    weights.push_back(pool.allocate(random() % (4 * kMiB) + 1));
  }
  size_t after_two = 0;
  for (int step = 0; step < 50; ++step) {
    std::vector<BlockPool::Block*> activations;
    for (int layer = 0; layer < 12; ++layer) {
      for (const size_t width : {1, 3, 1, 4, 1}) {
        activations.push_back(pool.allocate(width * 700 * 1024 * 4));
        pool.free(pool.allocate(width * 700 * 1024 * 2));  // what only the layer needs
      }
    }
    while (!activations.empty()) {
      pool.free(activations.back());
      activations.pop_back();
    }
    after_two = step == 1 ? pool.committed() : after_two;
  }
  EXPECT_EQ(pool.committed(), after_two);
  EXPECT_EQ(source.times_given_back, 0);
}

TEST(BlockPoolTest, GivesSmallPiecesMemoryBackForLargeOnes) {
  CountedPages source;
  BlockPool pool(source, size_t{64} << 30);
  std::vector<BlockPool::Block*> small;
  for (int i = 0; i < 1000; ++i) {
    small.push_back(pool.allocate(kMiB));
  }
  auto* kept = small.back();  // at the end: all before it is given back around it
  small.pop_back();
  for (auto* block : small) {
    pool.free(block);
  }
  EXPECT_GE(pool.committed(), 1000 * kMiB) << "kept for the next step";
  pool.allocate(900 * kMiB);
  EXPECT_LE(pool.committed(), 1500 * kMiB);
  EXPECT_TRUE(source.has_memory(*kept));
}

TEST(BlockPoolTest, GoesOnWithShortSegmentsWhereLongOnesCannotBeHad) {
  CountedPages source(/*longest=*/64 * kMiB);
  BlockPool pool(source, size_t{64} << 30);
  EXPECT_NE(pool.allocate(20 * kMiB), nullptr);
  EXPECT_NE(pool.allocate(kMiB), nullptr);
  EXPECT_EQ(pool.allocate(100 * kMiB), nullptr);
  EXPECT_EQ(source.segments, (std::vector<size_t>{20 * kMiB, kPage}));
}

TEST(BlockPoolTest, SaysWhereThereIsNoMemoryAndLosesNone) {
  CountedPages source;
  source.limit = 64 * kMiB;
  BlockPool pool(source, size_t{1} << 30);
  EXPECT_EQ(pool.allocate(65 * kMiB), nullptr);
  EXPECT_EQ(pool.in_use(), 0);
  auto* all = pool.allocate(64 * kMiB);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(pool.allocate(1), nullptr);
  pool.free(all);
  EXPECT_NE(pool.allocate(40 * kMiB), nullptr);
}

}  // namespace
}  // namespace mezzo
