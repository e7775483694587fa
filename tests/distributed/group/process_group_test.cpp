#include "mezzo/distributed/group/process_group.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "distributed/group/backends.h"
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
      group.all_reduce(sum);
      group.all_reduce(largest, c10d::ReduceOp::MAX);
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

TEST(ProcessGroupTest, ScattersExchangesAndGathersTensors) {
  const auto errors = RankThreads{.world_size = 3}.run([](ProcessGroup& group) {
    const int rank = group.rank();
    for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kLong}) {
      const auto rows = (at::arange(12).view({6, 2}) + 100 * rank).to(dtype);
      const auto gathered = group.all_gather(rows.t());  // not contiguous
      ASSERT_EQ(gathered.size(), 3);
      for (int other = 0; other < 3; ++other) {
        EXPECT_TRUE(at::equal(gathered[other], (at::arange(12).view({6, 2}) + 100 * other).to(dtype).t())) << dtype;
      }
      EXPECT_TRUE(at::equal(group.reduce_scatter(rows),
                            (3 * at::arange(12).view({6, 2}).narrow(0, 2 * rank, 2) + 300).to(dtype)))
          << dtype;
      const auto largest = group.reduce_scatter(rows, c10d::ReduceOp::MAX);
      EXPECT_TRUE(at::equal(largest, (at::arange(12).view({6, 2}).narrow(0, 2 * rank, 2) + 200).to(dtype))) << dtype;
      const auto exchanged = group.all_to_all(rows);
      for (int other = 0; other < 3; ++other) {
        const auto part = at::arange(12).view({6, 2}).narrow(0, 2 * rank, 2) + 100 * other;
        EXPECT_TRUE(at::equal(exchanged.narrow(0, 2 * other, 2), part.to(dtype))) << dtype;
      }
    }
    auto columns = at::full({4, 3}, rank).narrow(1, 0, 2);
    group.all_reduce(columns);
    EXPECT_TRUE(at::equal(columns, at::full({4, 2}, 3)));
    // Rank r sends i rows to rank i, so rank i gets i rows of each.
    const auto uneven = group.all_to_all(at::full({3}, rank), {rank, rank, rank}, {0, 1, 2});
    EXPECT_TRUE(at::equal(uneven, at::arange(3).repeat_interleave(rank)));
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(ProcessGroupTest, MakesGroupsOfSomeRanks) {
  const auto errors = RankThreads{.world_size = 4}.run([](ProcessGroup& group) {
    const auto odd = group.new_group({3, 1}), first = group.new_group({0, 1, 2});
    EXPECT_EQ(odd != nullptr, group.rank() % 2 == 1);
    EXPECT_EQ(first != nullptr, group.rank() < 3);
    if (odd) {
      EXPECT_EQ(odd->rank(), group.rank() == 3 ? 0 : 1);
      const auto ranks = odd->all_gather(at::full({1}, group.rank()));
      EXPECT_EQ(ranks[0].item<int64_t>(), 3);
      EXPECT_EQ(ranks[1].item<int64_t>(), 1);
      EXPECT_THAT(error_of([&] { odd->check_same({{"seed", std::to_string(group.rank())}}); }),
                  "seed differs between ranks: '3' on rank 3, '1' on rank 1; start all ranks with the same settings");
      odd->shutdown();
    }
    if (first) {
      auto sum = at::full({2}, group.rank());
      first->all_reduce(sum);
      EXPECT_EQ(sum[0].item<int64_t>(), 3);
      first->shutdown();
    }
    for (const auto& [ranks, message] :
         std::vector<std::pair<std::vector<int>, std::string>>{{{}, "no rank is given"},
                                                               {{0, 4}, "there is no rank 4 in a group of 4"},
                                                               {{1, 1}, "rank 1 is given twice"}}) {
      EXPECT_THAT(error_of([&group, &given = ranks] { group.new_group(given); }), HasSubstr(message));
    }
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(ProcessGroupTest, NamesTheRankOfTheWholeGroupThatFailsInASubgroup) {
  const auto errors = RankThreads{.world_size = 3, .timeout = kShort}.run([](ProcessGroup& group) {
    const auto last = group.new_group({1, 2});
    if (last) {
      last->guard([&] { TORCH_CHECK(group.rank() != 2, "a broken text"); });
      last->barrier();
    }
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_EQ(errors[1], "rank 2 failed: a broken text");
}

TEST(ProcessGroupTest, RefusesTensorsOfWhichACollectiveCannotBeMade) {
  const auto errors = RankThreads{.world_size = 2}.run([](ProcessGroup& group) {
    at::Tensor undefined;
    const auto five = at::arange(5);
    EXPECT_EQ(error_of([&] { group.all_reduce(undefined); }),
              "all_reduce: the tensor of rank " + std::to_string(group.rank()) + " is undefined");
    EXPECT_THAT(error_of([&] { group.reduce_scatter(five); }),
                HasSubstr("has 5 rows, which cannot be divided into 2 equal parts"));
    EXPECT_THAT(error_of([&] { group.all_to_all(five, {}, {1, 2}); }),
                HasSubstr("[1, 2], expected 2 numbers whose sum is 5"));
    EXPECT_THAT(error_of([&] { group.all_gather(five.to_sparse()); }), HasSubstr("is Sparse; pass a dense tensor"));
    EXPECT_THAT(error_of([&] { group.all_gather(at::empty({1}, at::kMeta)); }), HasSubstr("is on meta"));
    auto sum = five.clone();
    EXPECT_THAT(error_of([&] { group.broadcast(sum, 2); }), HasSubstr("there is no rank 2 in a group of 2"));
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(ProcessGroupTest, TellsTheOthersOfATensorThatOneRankRefuses) {
  const auto errors = RankThreads{.world_size = 2}.run(
      [](ProcessGroup& group) { group.reduce_scatter(at::arange(group.rank() == 1 ? 5 : 6)); });
  EXPECT_THAT(errors[1], HasSubstr("rank 1 has 5 rows, which cannot be divided into 2 equal parts"));
  EXPECT_THAT(errors[0], HasSubstr("rank 1 failed: reduce_scatter: rank 1 has 5 rows"));
}

TEST(ProcessGroupTest, ComparesTensorsOfRanksIfAsked) {
  auto threads = RankThreads{.world_size = 2};
  threads.check_collectives = true;
  const auto errors = threads.run([](ProcessGroup& group) {
    EXPECT_EQ(group.all_gather(at::ones({2})).size(), 2);
    const auto odd = group.rank() == 1 ? at::ones({2}, at::kHalf) : at::ones({3});
    const std::string places[] = {"'all_gather of Float [3]' on rank 0", "'all_gather of Half [2]' on rank 1"};
    const std::string message = error_of([&] { group.all_gather(odd); });
    EXPECT_THAT(message,
                HasSubstr("the tensor of a collective differs between ranks: " + places[0] + ", " + places[1]));
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
              "seed differs between ranks: '7' on rank 0, '8' on rank 2; start all ranks with the same settings");
    EXPECT_EQ(check(1, {{"a", "1"}, {"b", "2"}}, {{"b", "2"}}),
              "a differs between ranks: '1' on rank 0, 'nothing' on rank 1; start all ranks with the same settings");
    EXPECT_EQ(check(0, {{"a", "1"}, {"b", "2"}}, {{"b", "2"}}),
              "a differs between ranks: 'nothing' on rank 0, '1' on rank 1; start all ranks with the same settings");
    EXPECT_EQ(check(1, {{"a", "1"}}, {{"a", "1"}, {"ab", ""}}),
              "ab differs between ranks: 'nothing' on rank 0, '' on rank 1; start all ranks with the same settings");
    EXPECT_EQ(check(1, {{"a", "1"}, {"ab", "2"}}, {}),
              "a differs between ranks: '1' on rank 0, 'nothing' on rank 1; start all ranks with the same settings");
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
              StartsWith("rank 1 could not reach the ranks' store at 127.0.0.1:1, within 1 s"));
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
