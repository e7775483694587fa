#include "memory/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

namespace mezzo {
namespace {

/// Segments of a test, freed at its end.
struct Memory {
  char* reserve(size_t size) {
    segments.push_back(std::make_unique<char[]>(size));
    return segments.back().get();
  }
  std::vector<std::unique_ptr<char[]>> segments;
};

TEST(BlockPoolTest, BlocksNeverOverlapAndJoinAgainWhateverTheOrder) {
  constexpr size_t kSegment = size_t{1} << 20;
  std::mt19937_64 random(1);
  for (int round = 0; round < 20; ++round) {
    Memory memory;
    BlockPool pool([&](size_t size) { return memory.reserve(size); }, kSegment);
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
    for (size_t i = 1; i < sorted.size(); ++i) {
      ASSERT_LE(sorted[i - 1]->data + sorted[i - 1]->size, sorted[i]->data);
    }
    std::shuffle(live.begin(), live.end(), random);
    for (auto* block : live) {
      pool.free(block);
    }
    // Every segment is whole again, so each can be had in one piece.
    const size_t segments = memory.segments.size();
    for (size_t i = 0; i < segments; ++i) {
      EXPECT_EQ(pool.allocate(kSegment)->size, kSegment);
    }
    EXPECT_EQ(memory.segments.size(), segments);
    EXPECT_EQ(pool.reserved(), segments * kSegment);
  }
}

TEST(BlockPoolTest, TakesTheSmallestBlockThatFits) {
  Memory memory;
  BlockPool pool([&](size_t size) { return memory.reserve(size); }, 1 << 20);
  auto *large = pool.allocate(100 << 10), *wall = pool.allocate(1), *small = pool.allocate(10 << 10);
  pool.allocate(1);
  char *small_data = small->data, *large_data = large->data;
  pool.free(large);
  pool.free(small);
  EXPECT_EQ(pool.allocate(9 << 10)->data, small_data);
  EXPECT_EQ(pool.allocate(99 << 10)->data, large_data);
  (void)wall;
}

TEST(BlockPoolTest, SaysWhereThereIsNoMemory) {
  BlockPool pool([](size_t) -> char* { return nullptr; }, 1 << 20);
  EXPECT_EQ(pool.allocate(1), nullptr);
  EXPECT_EQ(pool.reserved(), 0U);
}

}  // namespace
}  // namespace mezzo
