#include "mezzo/distributed/group/process_group.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "distributed/group/nccl_backend.h"
#include "distributed/rank_threads.h"

namespace mezzo::distributed {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr std::chrono::milliseconds kShort(4000);  // for groups that are meant to fail

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

/// Keeps the warnings of the threads that it is set in.
struct KeptWarnings : c10::WarningHandler {
  void process(const c10::Warning& warning) override {
    const std::lock_guard lock(mutex);
    messages.push_back(warning.msg());
  }

  std::mutex mutex;
  std::vector<std::string> messages;
};

TEST(ProcessGroupTest, AddsUpTakesTheLargestCopiesAndGathers) {
  const auto errors = RankThreads{.world_size = 3}.run([](ProcessGroup& group) {
    const int rank = group.rank();
    for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble, at::kInt, at::kLong}) {
      auto sum = at::arange(5).to(dtype) + rank, largest = at::full({2, 2}, rank).to(dtype),
           copied = at::full({3}, rank).to(dtype);
      group.all_reduce_sum(sum);
      group.all_reduce_max(largest);
      group.broadcast(copied, 1);
      EXPECT_TRUE(at::equal(sum, (at::arange(5) * 3 + 3).to(dtype))) << dtype;
      EXPECT_TRUE(at::equal(largest, at::full({2, 2}, 2).to(dtype))) << dtype;
      EXPECT_TRUE(at::equal(copied, at::full({3}, 1).to(dtype))) << dtype;
    }
    EXPECT_THAT(group.all_gather(std::string(rank * 1000, 'x')),
                ElementsAre("", std::string(1000, 'x'), std::string(2000, 'x')));
    EXPECT_THAT(group.all_gather(""), ElementsAre("", "", ""));
    EXPECT_TRUE(group.any(rank == 2));
    EXPECT_FALSE(group.any(false));
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(ProcessGroupTest, NamesTheValueThatDiffers) {
  const auto errors = RankThreads{.world_size = 3}.run([](ProcessGroup& group) {
    const auto check = [&](int odd_rank, const std::map<std::string, std::string>& even,
                           const std::map<std::string, std::string>& odd) {
      return error_of([&] { group.check_same(group.rank() == odd_rank ? odd : even); });
    };
    EXPECT_EQ(check(1, {{"seed", "7"}, {"text", "a\nb"}}, {{"seed", "7"}, {"text", "a\nb"}}), "(nothing was thrown)");
    EXPECT_EQ(check(2, {{"a", "1"}, {"seed", "7"}, {"z", "1"}}, {{"a", "1"}, {"seed", "8"}, {"z", "2"}}),
              "seed differs between ranks: '7' on rank 0, '8' on rank 2; start all ranks alike");
    EXPECT_EQ(check(1, {{"a", "1"}, {"b", "2"}}, {{"b", "2"}}),
              "a differs between ranks: '1' on rank 0, 'nothing' on rank 1; start all ranks alike");
    EXPECT_EQ(check(0, {{"a", "1"}, {"b", "2"}}, {{"b", "2"}}),
              "a differs between ranks: 'nothing' on rank 0, '1' on rank 1; start all ranks alike");
    EXPECT_EQ(check(1, {{"a", "1"}}, {{"a", "1"}, {"ab", ""}}),
              "ab differs between ranks: 'nothing' on rank 0, '' on rank 1; start all ranks alike");
    EXPECT_EQ(check(1, {{"a", "1"}, {"ab", "2"}}, {}),
              "a differs between ranks: '1' on rank 0, 'nothing' on rank 1; start all ranks alike");
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(ProcessGroupTest, TellsAllRanksWhatFailedOnOne) {
  const auto errors = RankThreads{.world_size = 3}.run([](ProcessGroup& group) {
    group.all_or_none([] {});
    const auto error = error_of([&] { group.all_or_none([&] { TORCH_CHECK(group.rank() != 1, "no such file"); }); });
    EXPECT_EQ(error, group.rank() == 1 ? "no such file" : "rank 1 failed: no such file");
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(ProcessGroupTest, AnErrorWithoutAMessageIsAnError) {
  const auto errors = RankThreads{.timeout = kShort}.run([](ProcessGroup& group) {
    const auto fail = [&] {
      if (group.rank() == 1) throw std::runtime_error("");
    };
    EXPECT_THROW(group.all_or_none(fail), std::exception) << group.rank();
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(ProcessGroupTest, AnExceptionOfAnyTypeIsAnError) {
  const auto together = RankThreads{.timeout = kShort}.run([](ProcessGroup& group) {
    try {
      group.all_or_none([&] {
        if (group.rank() == 1) throw 42;
      });
    } catch (const int) {
    }
  });
  EXPECT_THAT(together, ElementsAre("rank 1 failed: an exception of an unknown type", ""));
  const auto alone = RankThreads{.timeout = kShort}.run([](ProcessGroup& group) {
    try {
      group.guard([&] {
        if (group.rank() == 1) throw 42;
        group.barrier();
      });
    } catch (const int) {
    }
  });
  EXPECT_THAT(alone, ElementsAre("rank 1 failed: an exception of an unknown type", ""));
}

TEST(ProcessGroupTest, QuotesARankThatFailedByItself) {
  const auto errors = RankThreads{.world_size = 3, .timeout = kShort}.run([](ProcessGroup& group) {
    group.guard([&] {
      TORCH_CHECK(group.rank() != 1, "no text in line 7\nof the file");
      group.barrier();
    });
  });
  EXPECT_THAT(errors, ElementsAre("rank 1 failed: no text in line 7", "no text in line 7\nof the file",
                                  "rank 1 failed: no text in line 7"));
}

TEST(ProcessGroupTest, TakesNoErrorForACollectivesByItsWords) {
  const auto words = "/data/gloomy.csv: cannot be opened; nor NCCL.txt, gloo::x";
  const auto errors = RankThreads{.timeout = kShort}.run([&](ProcessGroup& group) {
    group.guard([&] {
      TORCH_CHECK(group.rank() != 1, words);
      group.barrier();
    });
  });
  EXPECT_THAT(errors, ElementsAre(std::string("rank 1 failed: ") + words, words));
}

TEST(ProcessGroupTest, KeepsRunsApartThatMeetAtOneStore) {
  const auto both = RankThreads{.world_size = 2, .started = 4, .adjust = [](RankEnvironment& environment) {
                                  environment.run_id = environment.rank < 2 ? "7.0" : "7.1";
                                  environment.rank %= 2;
                                }};
  const auto errors = both.run([](ProcessGroup& group) {
    const auto& run = group.environment().run_id;
    EXPECT_THAT(group.all_gather(run), ElementsAre(run, run));
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));

  const auto halves = RankThreads{.timeout = std::chrono::seconds(2), .adjust = [](RankEnvironment& environment) {
                                    environment.run_id = environment.rank == 0 ? "7.0" : "7.1";
                                  }};
  EXPECT_THAT(halves.run([](ProcessGroup&) {}),
              ElementsAre(StartsWith("rank 1 of 2 did not come"), StartsWith("rank 0 of 2 did not come")));
}

TEST(ProcessGroupTest, MayBeOneOfSeveralOfAProcess) {
  const auto errors = RankThreads{}.run([](ProcessGroup& first) {
    {
      ProcessGroup second(first.environment(), first.options());
      EXPECT_THAT(second.all_gather(std::to_string(second.rank())), ElementsAre("0", "1"));
      EXPECT_THAT(first.all_gather(std::to_string(first.rank() + 2)), ElementsAre("2", "3"));
      second.shutdown();
    }
    ProcessGroup third(first.environment(), first.options());
    EXPECT_THAT(third.all_gather(std::to_string(third.rank() + 4)), ElementsAre("4", "5"));
    third.shutdown();
    first.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(ProcessGroupTest, NamesARankThatLeft) {
  const auto errors = RankThreads{.world_size = 3, .timeout = kShort}.run([](ProcessGroup& group) {
    group.barrier();
    if (group.rank() != 1) {
      group.barrier();
    }
  });
  EXPECT_THAT(errors, ElementsAre(StartsWith("lost rank 1 (process "), "", StartsWith("lost rank 1 (process ")));
}

TEST(ProcessGroupTest, NamesTheRanksThatItWaitsForAndThatDidNotCome) {
  KeptWarnings kept;
  uint16_t port = 0;
  const auto keep = [&](RankEnvironment& environment) {
    if (environment.rank == 0) {
      c10::WarningUtils::set_warning_handler(&kept);  // of a thread that ends with the rank
      port = environment.master_port;
    }
  };
  // It says so after a quarter of the time, by which both ranks must have come.
  const auto errors = RankThreads{.world_size = 4, .started = 2, .timeout = kShort, .adjust = keep}.run([](auto&) {});
  EXPECT_THAT(errors, Each(StartsWith("ranks 2, 3 of 4 did not come within 4 s: still starting, failed, or on a ")));
  EXPECT_THAT(kept.messages, ElementsAre("waiting for ranks 2, 3 of 4 at 127.0.0.1:" + std::to_string(port)));
}

TEST(ProcessGroupTest, SaysThatItIsWaitingForTheStore) {
  KeptWarnings kept;
  const c10::WarningUtils::WarningHandlerGuard guard(&kept);
  RankEnvironment environment;
  environment.rank = 1;
  environment.world_size = 2;
  environment.master_port = 1;  // where nobody listens
  const auto options = ProcessGroupOptions().timeout(kShort / 4);
  EXPECT_THAT(error_of([&] { ProcessGroup(environment, options); }),
              StartsWith("rank 1 could not reach the store where ranks meet, at 127.0.0.1:1, within 1 s"));
  EXPECT_THAT(kept.messages, ElementsAre("rank 1 is waiting for rank 0 at 127.0.0.1:1"));
}

TEST(ProcessGroupTest, Rank0AsksForAnAddressOfItsHost) {
  RankEnvironment environment;
  environment.world_size = 2;
  environment.master_addr = "192.0.2.1";  // of no host: RFC 5737
  const auto options = ProcessGroupOptions().timeout(kShort / 4);
  EXPECT_THAT(error_of([&] { ProcessGroup(environment, options); }),
              HasSubstr("; set MASTER_ADDR to an address of this host"));
}

TEST(ProcessGroupTest, RefusesWhatCannotBe) {
  EXPECT_EQ(error_of([] { ProcessGroup({}, ProcessGroupOptions().timeout(std::chrono::milliseconds(0))); }),
            "the timeout of a process group must be above 0");
  if (has_nccl()) {
    GTEST_SKIP() << "this build has NCCL";
  }
  EXPECT_THAT(error_of([] { ProcessGroup({}, ProcessGroupOptions().device(c10::Device(c10::kCUDA, 0))); }),
              StartsWith("collectives on cuda:0 need a LibTorch with NCCL"));
}

}  // namespace
}  // namespace mezzo::distributed
