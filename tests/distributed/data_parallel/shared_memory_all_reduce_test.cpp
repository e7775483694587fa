#include "mezzo/distributed/data_parallel/shared_memory_all_reduce.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distributed/rank_threads.h"

namespace mezzo::distributed {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

at::Tensor values_of(int rank, int64_t size, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(size * 10 + rank));
  return (at::randn({size}, generator) * (rank + 1)).to(dtype);
}

TEST(SharedMemoryAllReduceTest, AddsUpInTheOrderOfRanks) {
  constexpr int64_t chunk = 128 * 1024;
  const auto errors = RankThreads{.world_size = 3}.run([](ProcessGroup& group) {
    const auto all_reduce = SharedMemoryAllReduce::create(group);
    ASSERT_NE(all_reduce, nullptr);
    for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      for (const int64_t size : {int64_t(0), int64_t(1), int64_t(5), chunk - 1, chunk, chunk + 1, 2 * chunk + 7}) {
        at::Tensor tensor = values_of(group.rank(), size, dtype), expected = values_of(0, size, dtype).to(at::kFloat);
        for (int rank = 1; rank < 3; ++rank) {
          expected += values_of(rank, size, dtype);
        }
        all_reduce->sum(tensor);
        EXPECT_TRUE(at::equal(tensor, expected.to(dtype))) << size << " of " << dtype;
      }
    }
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(SharedMemoryAllReduceTest, LeavesASingleRankItsOwnValues) {
  const auto errors = RankThreads{.world_size = 1}.run([](ProcessGroup& group) {
    const auto all_reduce = SharedMemoryAllReduce::create(group);
    ASSERT_NE(all_reduce, nullptr);
    for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      for (const int64_t size : {1, 5, 300'000}) {
        at::Tensor tensor = values_of(0, size, dtype);
        all_reduce->sum(tensor);
        EXPECT_TRUE(at::equal(tensor, values_of(0, size, dtype))) << size << " of " << dtype;
      }
    }
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(SharedMemoryAllReduceTest, IsThereOnOneHostOnly) {
  const auto errors = RankThreads{.one_host = false}.run([](ProcessGroup& group) {
    EXPECT_EQ(SharedMemoryAllReduce::create(group), nullptr);
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(SharedMemoryAllReduceTest, RefusesOtherTensors) {
  const auto errors = RankThreads{}.run([](ProcessGroup& group) {
    const auto all_reduce = SharedMemoryAllReduce::create(group);
    auto whole = at::ones({2}, at::kLong), strided = at::ones({4, 4}).t();
    EXPECT_THROW(all_reduce->sum(whole), c10::ValueError);
    EXPECT_THROW(all_reduce->sum(strided), c10::ValueError);
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(SharedMemoryAllReduceTest, NamesARankThatDoesNotCome) {
  const auto errors = RankThreads{.world_size = 3, .timeout = std::chrono::seconds(2)}.run([](ProcessGroup& group) {
    const auto all_reduce = SharedMemoryAllReduce::create(group);
    auto tensor = at::ones({10});
    if (group.rank() != 1) {
      all_reduce->sum(tensor);
    }
  });
  const auto late = HasSubstr("shared memory: rank 1 did not come within the timeout");
  EXPECT_THAT(errors, ElementsAre(late, "", late));
}

c10::intrusive_ptr<c10::ivalue::Future> call(const CommHook& hook,
                                             const at::Tensor& buffer,
                                             size_t index,
                                             size_t count) {
  c10d::GradBucket bucket(index, count, buffer, {}, {}, {}, {}, std::nullopt);
  return hook(nullptr, bucket);
}

TEST(SharedMemoryHookTest, ForgetsABackwardThatThrew) {
  const auto errors = RankThreads{.timeout = std::chrono::seconds(10)}.run([](ProcessGroup& group) {
    const auto hook = shared_memory_hook(SharedMemoryAllReduce::create(group));
    const auto left = at::full({300'000}, 7.0F);
    if (group.rank() == 0) {
      call(hook, left, 0, 2);  // the other rank's threw before it had a bucket
    }
    const auto first = at::full({5}, 1.0F + group.rank()), last = at::full({3}, 10.0F * group.rank());
    const auto future = call(hook, first, 0, 2);
    EXPECT_FALSE(future->completed());
    EXPECT_TRUE(call(hook, last, 1, 2)->completed());
    EXPECT_TRUE(future->completed());
    EXPECT_TRUE(at::equal(first, at::full({5}, 3.0F))) << first;
    EXPECT_TRUE(at::equal(last, at::full({3}, 10.0F))) << last;
    EXPECT_TRUE(at::equal(left, at::full({300'000}, 7.0F)));
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

}  // namespace
}  // namespace mezzo::distributed
