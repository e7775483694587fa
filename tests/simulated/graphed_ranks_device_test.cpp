#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <array>
#include <map>
#include <string>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/distributed/data_parallel/comm_hooks.h"
#include "mezzo/distributed/data_parallel/distributed_data_parallel.h"
#include "mezzo/distributed/zero/sharded_master_weights.h"
#include "mezzo/distributed/zero/zero_redundancy_optimizer.h"
#include "mezzo/graph/graphed_step.h"
#include "mezzo/optim/adam.h"
#include "not_finite.h"
#include "simulated/device_ranks.h"
#include "simulated/device_test.h"

/// Recorded steps of two ranks beside the same steps as they stand. Ranks see different shapes, so that one records a
/// step while the other replays it, or runs it eagerly.

namespace mezzo::distributed {
namespace {

using simulated::DeviceRanks;
using simulated::Watch;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using Tensors = std::vector<at::Tensor>;

struct NormedNetImpl : torch::nn::Module {
  NormedNetImpl() {
    torch::manual_seed(7);
    hidden = register_module("hidden", torch::nn::Linear(6, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(16).affine(false)));
    out = register_module("out", torch::nn::Linear(16, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return out(norm(torch::tanh(hidden(x)))); }
  torch::nn::Linear hidden = nullptr, out = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
};

struct Case {
  std::string name;
  CommHook hook = nullptr;
  bool views = false;
  bool is_sharded = false;
  bool has_masters = false;
  int micro_batches = 1;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {.name = "plain"},
      {.name = "views", .views = true, .micro_batches = 2},
      {.name = "fp16", .hook = fp16_compress_hook, .micro_batches = 2},
      {.name = "bf16_views", .hook = sum_wrapper(bf16_compress_hook), .views = true},
      {.name = "zero", .is_sharded = true, .micro_batches = 2},
      {.name = "zero_masters", .hook = allreduce_sum_hook, .views = true, .is_sharded = true, .has_masters = true},
  };
  return all;
}

constexpr int64_t kSteps = 14;
/// Rows of a rank's batches, by step.
constexpr std::array<std::array<int64_t, kSteps>, 2> kRows{{{4, 4, 4, 3, 4, 3, 3, 4, 3, 4, 3, 4, 4, 3},  //
                                                            {4, 4, 4, 4, 4, 4, 4, 4, 4, 5, 5, 5, 4, 4}}};
/// Factor of a loss. Its gradients underflow in float16, or overflow on rank 1 alone.
double factor_of(int rank, int64_t step) {
  return step == 5 ? 1e-8 : rank == 1 && (step == 1 || step == 8) ? 1e6 : rank == 1 && step == 11 ? kInf : 1;
}

struct Trained {
  Tensors state;
  std::vector<double> losses;
  GraphedStepCounts counts;
  CommStats sent;
  ZeroRedundancyStatistics shared;
  std::vector<std::string> host_syncs;
  int64_t replays = 0;
};

class GraphedRanksTest : public simulated::DeviceTest {
 protected:
  /// @param max_graphs  by rank
  static std::array<Trained, 2> train(const Case& how, bool by_host, bool records, std::array<int64_t, 2> max_graphs) {
    std::array<std::shared_ptr<NormedNetImpl>, 2> nets{std::make_shared<NormedNetImpl>(),
                                                       std::make_shared<NormedNetImpl>()};
    std::array<Trained, 2> trained;
    const auto errors = DeviceRanks{.by_host = by_host}.run([&](ProcessGroup& group, c10::Device mine) {
      const auto rank = static_cast<size_t>(group.rank());
      const auto& net = nets[rank];
      simulated::move_to(*net, mine);
      run(how, group, mine, net, records, max_graphs[rank], trained[rank]);
      group.shutdown();
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
    return trained;
  }

 private:
  static void run(const Case& how,
                  ProcessGroup& group,
                  c10::Device mine,
                  const std::shared_ptr<NormedNetImpl>& net,
                  bool records,
                  int64_t max_graphs,
                  Trained& trained) {
    auto parameters = named_parameters(*net);
    std::optional<ShardedMasterWeights> masters;
    if (how.has_masters) {
      const auto owner = partition_parameters({{parameters}}, group.size());
      masters.emplace(parameters, at::kHalf, owner, group.rank());
      parameters = masters->masters();
    }
    DistributedDataParallel<NormedNetImpl> model(
        net, group, DistributedDataParallelOptions().gradient_as_bucket_view(how.views).bucket_cap_mb(0.0002));
    if (how.hook) {
      model.register_comm_hook(how.hook);
    }
    auto adam = std::make_unique<AdamW>(parameters, AdamWOptions().lr(0.05).max_grad_norm(0.5));
    std::optional<ZeroRedundancyOptimizer> sharded;
    if (how.is_sharded) {
      sharded.emplace(group, std::move(adam));
    }
    auto& optimizer = sharded ? static_cast<torch::optim::Optimizer&>(*sharded) : *adam;
    GradScaler scaler(GradScalerOptions().init_scale(65536).found_inf_all_reduce(all_reduce_found_inf(group)));
    GraphedStep step(
        mine,
        [&](const Tensors& inputs) {
          auto total = at::zeros({}, mine);
          for (int i = 0; i < how.micro_batches; ++i) {
            const auto no_sync = model.no_sync(i + 1 < how.micro_batches);
            const AutocastGuard autocast(mine.type(), at::kHalf);
            const auto loss = (model.forward(inputs[0] * (i + 1)).square().mean() * inputs[1]).to(at::kFloat);
            total = total + loss.detach();
            model.backward(scaler.scale(loss));
          }
          const auto found_inf = scaler.step(optimizer).found_inf();
          scaler.update();
          sharded ? sharded->zero_grad() : adam->zero_grad();
          return Tensors{at::stack({total, found_inf.to(at::kFloat), scaler.scale_tensor().to(at::kFloat)})};
        },
        GraphedStepOptions().warmup_steps(1).max_graphs(max_graphs).enabled(records));
    const auto rank = static_cast<size_t>(group.rank());
    Tensors results;
    std::optional<Watch> later;
    for (int64_t i = 0; i < kSteps; ++i) {
      const int64_t rows = kRows[rank][static_cast<size_t>(i)];
      const auto x = at::linspace(-1 - static_cast<double>(rank), static_cast<double>(i), rows * 6).view({rows, 6});
      results.push_back(step({x.to(at::kHalf).pin_memory(), at::full({}, factor_of(group.rank(), i))})[0].clone());
      if (i == 1) {
        group.barrier();
        later.emplace();
        group.barrier();
      }
    }
    group.barrier();
    trained.host_syncs = later->host_syncs();
    trained.replays = later->replays();
    group.barrier();
    trained.counts = step.counts();
    trained.sent = model.comm_stats();
    trained.shared = sharded ? sharded->statistics() : ZeroRedundancyStatistics();
    for (const at::Tensor& result : results) {
      const auto values = result.to(at::kCPU, at::kDouble);
      trained.losses.insert(trained.losses.end(), values.data_ptr<double>(), values.data_ptr<double>() + 3);
    }
    for (const auto& parameter : parameters) {
      trained.state.push_back(parameter.tensor.detach().cpu());
    }
    for (const auto& buffer : net->buffers()) {
      trained.state.push_back(buffer.cpu());
    }
    for (const auto& [name, tensor] : sharded ? sharded->local().state_dict() : adam->state_dict()) {
      trained.state.push_back(tensor.cpu());
    }
    group.barrier();
  }
};

class GraphedRanksCaseTest : public GraphedRanksTest, public testing::WithParamInterface<std::tuple<size_t, bool>> {};

std::string name_of(const testing::TestParamInfo<std::tuple<size_t, bool>>& values) {
  return cases()[std::get<0>(values.param)].name + (std::get<1>(values.param) ? "_by_host" : "_captured");
}

INSTANTIATE_TEST_SUITE_P(All,
                         GraphedRanksCaseTest,
                         testing::Combine(testing::Range<size_t>(0, 6), testing::Bool()),
                         &name_of);

TEST_P(GraphedRanksCaseTest, RecordedStepsGiveTheBitsOfEagerOnes) {
  const auto& [index, by_host] = GetParam();
  const Case& how = cases()[index];
  const auto eager = train(how, by_host, /*records=*/false, {8, 8});
  const auto recorded = train(how, by_host, /*records=*/true, {8, 1});
  for (size_t rank = 0; rank < 2; ++rank) {
    SCOPED_TRACE(rank);
    EXPECT_EQ(eager[rank].counts.replayed, 0);
    EXPECT_GE(recorded[rank].counts.replayed, 8);
    EXPECT_EQ(recorded[rank].counts.recorded, rank == 0 ? 2 : 3) << "rank 1 keeps one graph";
    ASSERT_EQ(eager[rank].losses.size(), recorded[rank].losses.size());
    for (size_t i = 0; i < eager[rank].losses.size(); ++i) {
      const double a = eager[rank].losses[i], b = recorded[rank].losses[i];
      EXPECT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << a << " and " << b << ", step " << i / 3;
    }
    for (size_t i = 0; i < eager[rank].state.size(); ++i) {
      EXPECT_TRUE(at::equal(eager[rank].state[i], recorded[rank].state[i])) << i;
      EXPECT_TRUE(eager[rank].state[i].isfinite().all().item<bool>()) << i;
    }
    EXPECT_EQ(recorded[rank].losses[11 * 3 + 1], 1) << "rank 1's overflow skips the step on both";
    EXPECT_EQ(eager[rank].losses[13 * 3 + 2], recorded[1 - rank].losses[13 * 3 + 2]) << "one scale";
    EXPECT_LT(recorded[rank].losses.back(), 65536);
    EXPECT_EQ(eager[rank].sent.steps, recorded[rank].sent.steps);
    EXPECT_EQ(eager[rank].sent.buckets, recorded[rank].sent.buckets);
    EXPECT_EQ(eager[rank].sent.gradient_bytes, recorded[rank].sent.gradient_bytes);
    EXPECT_EQ(eager[rank].shared.messages, recorded[rank].shared.messages);
    EXPECT_EQ(eager[rank].shared.bytes_sent, recorded[rank].shared.bytes_sent);
    EXPECT_EQ(recorded[rank].host_syncs.empty(), !by_host);
  }
}

TEST_F(GraphedRanksTest, AStepIsOneGraphOrTwoAroundEachCallOfTheHost) {
  const auto graphs_per_step = [](const Case& how, bool by_host) {
    const auto trained = train(how, by_host, /*records=*/true, {8, 8});
    const int64_t steps = trained[0].counts.replayed + trained[1].counts.replayed;
    return static_cast<double>(trained[0].replays) / static_cast<double>(steps);
  };
  EXPECT_EQ(graphs_per_step(cases()[0], /*by_host=*/false), 1);
  // Between them the host sends buffers, then gradients, then whether gradients overflowed.
  EXPECT_EQ(graphs_per_step(cases()[0], /*by_host=*/true), 4);
}

TEST_F(GraphedRanksTest, BackwardWithoutDataParallelIsAnErrorWhereTheHostReduces) {
  for (const bool by_host : {false, true}) {
    std::array<std::shared_ptr<NormedNetImpl>, 2> nets{std::make_shared<NormedNetImpl>(),
                                                       std::make_shared<NormedNetImpl>()};
    const auto errors = DeviceRanks{.by_host = by_host}.run([&](ProcessGroup& group, c10::Device mine) {
      const auto& net = nets[static_cast<size_t>(group.rank())];
      simulated::move_to(*net, mine);
      DistributedDataParallel<NormedNetImpl> model(net, group);
      GraphedStep step(
          mine,
          [&](const Tensors& inputs) {
            const auto loss = model.forward(inputs[0]).sum();
            loss.backward();
            net->zero_grad();
            return Tensors{loss.detach()};
          },
          GraphedStepOptions().warmup_steps(1));
      for (int i = 0; i < 3; ++i) {
        step({at::ones({2, 6})});
      }
      group.shutdown();
    });
    EXPECT_THAT(errors, Each(by_host ? testing::Matcher<std::string>(HasSubstr("call its backward(loss)"))
                                     : testing::Matcher<std::string>(IsEmpty())));
  }
}

TEST_F(GraphedRanksTest, ARecordingThatFailedBeforeBackwardIsForgotten) {
  std::array<std::shared_ptr<NormedNetImpl>, 2> nets{std::make_shared<NormedNetImpl>(),
                                                     std::make_shared<NormedNetImpl>()};
  const auto errors = DeviceRanks{.by_host = true}.run([&](ProcessGroup& group, c10::Device mine) {
    const auto& net = nets[static_cast<size_t>(group.rank())];
    simulated::move_to(*net, mine);
    DistributedDataParallel<NormedNetImpl> model(net, group);
    bool fails = false;
    const auto compute = [&](const Tensors& inputs) {
      const auto loss = model.forward(inputs[0]).sum();
      TORCH_CHECK(!fails, "no more data");
      model.backward(loss);
      net->zero_grad();
      return Tensors{loss.detach()};
    };
    GraphedStep step(mine, compute, GraphedStepOptions().warmup_steps(1));
    step({at::ones({2, 6})});
    step({at::ones({2, 6})});
    fails = true;
    EXPECT_THAT([&] { step({at::ones({2, 6})}); }, testing::ThrowsMessage<c10::Error>(HasSubstr("no more data")));
    fails = false;
    compute({at::ones({2, 6}).to(mine)});
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST_F(GraphedRanksTest, AReplayThatWaitsForALostRankNamesIt) {
  for (const bool by_host : {false, true}) {
    for (const bool fails : {false, true}) {
      SCOPED_TRACE(testing::Message() << by_host << fails);
      const auto errors = DeviceRanks{.by_host = by_host, .timeout = std::chrono::seconds(2)}.run(
          [&](ProcessGroup& group, c10::Device mine) {
            GraphedStep step(
                mine,
                [&](const Tensors& inputs) {
                  auto sum = inputs[0] + 1;
                  group.all_reduce(sum);
                  return Tensors{sum};
                },
                GraphedStepOptions().warmup_steps(1));
            const auto do_step = [&] {
              const auto sum = step({at::ones({3})})[0];
              c10::Event arrived(mine.type());
              arrived.record(simulated::current_stream(mine.index()));
              group.wait([&] { return arrived.query(); });
              return sum.sum().item<float>();
            };
            for (int i = 0; i < 3; ++i) {
              EXPECT_EQ(do_step(), 12);
            }
            EXPECT_EQ(step.counts().replayed, 2);
            if (group.rank() == 1) {
              fails ? group.guard([] { TORCH_CHECK(false, "no more data"); }) : void();
              return;  // without a word
            }
            group.guard([&] { do_step(); });
          });
      EXPECT_THAT(errors[0], fails ? HasSubstr("rank 1 failed: no more data") : HasSubstr("lost rank 1"));
    }
  }
}

TEST_F(GraphedRanksTest, CollectivesAreCheckedInTheOrderOfEagerSteps) {
  for (const bool by_host : {false, true}) {
    SCOPED_TRACE(by_host);
    const DeviceRanks ranks{.by_host = by_host, .timeout = std::chrono::seconds(5), .check_collectives = true};
    int64_t rows_of_rank_1 = 3;
    const auto run = [&](int steps) {
      return ranks.run([&](ProcessGroup& group, c10::Device mine) {
        GraphedStep step(
            mine,
            [&](const Tensors& inputs) {
              auto first = inputs[0] + 1;
              group.all_reduce(first);
              auto second = at::cat({first, first});
              group.all_reduce(second);
              return Tensors{second};
            },
            GraphedStepOptions().warmup_steps(1).enabled(group.rank() == 0));
        for (int i = 0; i < steps; ++i) {
          EXPECT_EQ(step({at::ones({group.rank() == 0 ? 3 : rows_of_rank_1})})[0].sum().item<float>(), 48);
        }
        EXPECT_EQ(step.counts().replayed, group.rank() == 0 ? steps - 1 : 0);
        group.shutdown();
      });
    };
    EXPECT_THAT(run(4), Each(IsEmpty()));
    rows_of_rank_1 = 2;
    EXPECT_THAT(run(1), Each(HasSubstr("the tensor of a collective differs between ranks: 'all_reduce of Float [3]'")));
  }
}

/// Ranks that have run out of batches take part in eager steps alone.
TEST_F(GraphedRanksTest, StepsAreNeitherRecordedNorReplayedWithinJoin) {
  for (const bool is_recorded_before : {false, true}) {
    std::array<std::shared_ptr<NormedNetImpl>, 2> nets{std::make_shared<NormedNetImpl>(),
                                                       std::make_shared<NormedNetImpl>()};
    const auto errors = DeviceRanks{.timeout = std::chrono::seconds(2)}.run([&](ProcessGroup& group, c10::Device mine) {
      const auto& net = nets[static_cast<size_t>(group.rank())];
      simulated::move_to(*net, mine);
      DistributedDataParallel<NormedNetImpl> model(net, group);
      GraphedStep step(
          mine,
          [&](const Tensors& inputs) {
            const auto loss = model.forward(inputs[0]).sum();
            model.backward(loss);
            net->zero_grad(/*set_to_none=*/false);
            return Tensors{loss.detach()};
          },
          GraphedStepOptions().warmup_steps(1));
      for (int i = 0; is_recorded_before && i < 4; ++i) {
        step({at::ones({2, 6})});
      }
      EXPECT_EQ(step.was_replayed(), is_recorded_before);
      model.join([&] {
        for (int i = 0; i < 4 + group.rank(); ++i) {
          step({at::ones({2, 6})});
        }
      });
    });
    EXPECT_THAT(errors, Each(HasSubstr("a recorded step cannot run within join")));
  }
}

TEST_F(GraphedRanksTest, WhatTheHostReadsCannotBeRecorded) {
  const auto errors = DeviceRanks().run([&](ProcessGroup& group, c10::Device mine) {
    GraphedStep step(
        mine,
        [&](const Tensors& inputs) {
          group.barrier();
          return Tensors{inputs[0] + 1};
        },
        GraphedStepOptions().warmup_steps(1));
    step({at::ones({3})});
    EXPECT_THAT([&] { step({at::ones({3})}); },
                testing::ThrowsMessage<c10::Error>(
                    AllOf(HasSubstr("the step cannot be recorded"), HasSubstr("a collective on the CPU"))));
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

}  // namespace
}  // namespace mezzo::distributed
