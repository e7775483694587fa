#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "kernels/cuda/block.h"

namespace mezzo::kernels::MEZZO_CUDA {
namespace {

/// Kernels of memory of the host's, which nobody guards.
struct OnHost {
  template <class Memory, class Arguments>
  static void uses(Memory& /*memory*/, const Arguments& /*arguments*/) {}
};

struct Sums {
  const float* from;
  float* to;
};

/// A sum a block, by shuffles and shared memory.
struct SumKernel : OnHost {
  MEZZO_DEVICE static void run(const Block& block, const Sums& a) {
    const float mine = a.from[block.index() * block.threads() + block.thread()];
    const float sum = block_sum(block, mine, block.shared<float>());
    if (block.thread() == 5) {
      a.to[block.index()] = sum;
    }
  }
};

TEST(HostBlockTest, ThreadsMeetAtBarriersAndShuffles) {
  constexpr int kBlocks = 3, kThreads = 96;
  std::vector<float> from(kBlocks * kThreads), to(kBlocks);
  std::iota(from.begin(), from.end(), 1.0F);
  launch<SumKernel>(Grid{kBlocks, kThreads, 3 * sizeof(float)}, nullptr, Sums{from.data(), to.data()});
  for (int block = 0; block < kBlocks; ++block) {
    const int first = block * kThreads + 1, last = first + kThreads - 1;
    EXPECT_EQ(to[static_cast<size_t>(block)], static_cast<float>((first + last) * kThreads / 2));
  }
}

struct ReverseKernel : OnHost {
  static constexpr bool kForgetsToWait = true;
  MEZZO_DEVICE static void run(const Block& block, float* const& data) {
    float* shared = block.shared<float>();
    shared[block.thread()] = data[block.thread()];
    const float other = shared[block.threads() - 1 - block.thread()];  // which has not come yet, or has
    data[block.thread()] = other;
  }
};

TEST(HostBlockTest, WhoForgetsABarrierReadsWhatIsNotThere) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "is a data race, which ThreadSanitizer reports";
#endif
  std::vector<float> data(64);
  std::iota(data.begin(), data.end(), 0.0F);
  launch<ReverseKernel>(Grid{1, 64, 64 * sizeof(float)}, nullptr, data.data());
  EXPECT_TRUE(std::ranges::any_of(data, [](float x) { return std::isnan(x); }));
}

struct LeavingKernel : OnHost {
  MEZZO_DEVICE static void run(const Block& block, const int& leaver) {
    if (block.thread() != leaver) {
      block.sync();
    }
  }
};

struct ForkedKernel : OnHost {
  MEZZO_DEVICE static void run(const Block& block, const int& other) {
    if (block.thread() == other) {
      block.sync();
    } else {
      block.sync();
    }
  }
};

TEST(HostBlockTest, ThreadsThatWaitInVainAreNamed) {
  EXPECT_THAT([] { launch<LeavingKernel>(Grid{1, 32}, nullptr, 7); },
              testing::ThrowsMessage<std::logic_error>(testing::HasSubstr("host_block_test.cpp")));
  EXPECT_THROW((launch<ForkedKernel>(Grid{2, 64}, nullptr, 7)), std::logic_error);
  EXPECT_NO_THROW((launch<ForkedKernel>(Grid{2, 64}, nullptr, -1)));
  EXPECT_THROW((launch<ForkedKernel>(Grid{1, 33}, nullptr, -1)), std::logic_error);
  EXPECT_THROW((launch<ForkedKernel>(Grid{0, 32}, nullptr, -1)), std::logic_error);
}

struct NumberKernel {
  template <class Memory>
  static void uses(Memory& memory, float* const& data) {
    memory.updates(data, 5 * 64);
    memory.reads(static_cast<const double*>(nullptr), 8);
  }
  MEZZO_DEVICE static void run(const Block& block, float* const& data) {
    const int64_t number = block.index() * block.threads() + block.thread();
    data[number] += static_cast<float>(number);
  }
};

TEST(HostBlockTest, HooksDeferLaunchesWhoseThreadsAllRunOnce) {
  std::vector<float> data(5 * 64, 0.0F), numbers(data.size());
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  const int64_t before = num_launches();
  std::vector<Launched> queued;
  set_launch_hook([&](void*, Launched launched) { queued.push_back(std::move(launched)); });
  launch<NumberKernel>(Grid{5, 64}, nullptr, data.data());
  set_launch_hook(nullptr);
  EXPECT_TRUE(std::ranges::all_of(data, [](float x) { return x == 0; }));
  EXPECT_EQ(num_launches(), before + 1);
  queued.at(0).run();
  EXPECT_EQ(data, numbers);
  EXPECT_EQ(queued[0].kernel, "NumberKernel");
  ASSERT_EQ(queued[0].uses.size(), 2) << "what is null is not used";
  EXPECT_EQ(queued[0].uses[0].bytes_read, 5 * 64 * 4);
  EXPECT_EQ(queued[0].uses[1].bytes_written, 5 * 64 * 4);
}

}  // namespace
}  // namespace mezzo::kernels::MEZZO_CUDA
