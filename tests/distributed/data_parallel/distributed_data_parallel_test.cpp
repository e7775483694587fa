#include "mezzo/distributed/data_parallel/distributed_data_parallel.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <sstream>

#include "distributed/rank_threads.h"
#include "mezzo/optim/named_parameter.h"

namespace mezzo::distributed {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct SmallNetImpl : torch::nn::Module {
  SmallNetImpl()
      : layers(register_module("layers", torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4)))) {}
  at::Tensor forward(const at::Tensor& x) {
    TORCH_CHECK(!fails, "a broken text");
    return layers->forward(x);
  }

  torch::nn::Sequential layers;
  bool fails = false;
};
TORCH_MODULE(SmallNet);

TEST(DistributedDataParallelTest, IsAModule) {
  const auto errors = RankThreads{.world_size = 1}.run([](ProcessGroup& group) {
    SmallNet net;
    DistributedDataParallel ddp(net, group);
    EXPECT_THAT(ddp.named_parameters().keys(), ElementsAre("module.layers.0.weight", "module.layers.0.bias",
                                                           "module.layers.1.weight", "module.layers.1.bias"));
    EXPECT_EQ(ddp.named_buffers().size(), 3);
    EXPECT_EQ(named_parameters(ddp)[2].norm, NormRole::kNormWithStatistics);
    ddp.eval();
    EXPECT_FALSE(net->layers->is_training());
    ddp.train();
    EXPECT_TRUE(net->layers->is_training());
    ddp.backward(ddp(at::ones({2, 3})).sum());
    ddp.zero_grad();
    EXPECT_FALSE(net->parameters()[0].grad().defined());

    std::stringstream stream;
    torch::save(ddp, stream);
    SmallNet other;
    const auto loaded = std::make_shared<DistributedDataParallel<SmallNetImpl>>(other, group);
    torch::load(*loaded, stream);
    EXPECT_TRUE(at::equal(other->parameters()[0], net->parameters()[0]));

    struct Outer : torch::nn::Module {};
    Outer outer;
    outer.register_module("student", loaded);
    EXPECT_EQ(outer.named_parameters().keys()[0], "student.module.layers.0.weight");
    outer.to(at::kDouble);
    EXPECT_EQ(other->parameters()[0].scalar_type(), at::kDouble);
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(DistributedDataParallelTest, NamesTheRankWhoseForwardFails) {
  const auto errors =
      RankThreads{.world_size = 3, .timeout = std::chrono::milliseconds(4000)}.run([](ProcessGroup& group) {
        SmallNet net;
        DistributedDataParallel ddp(net, group);
        for (int step = 0; step < 3; ++step) {
          net->fails = group.rank() == 1 && step == 1;
          ddp.backward(ddp(at::randn({2, 3})).sum());
        }
      });
  EXPECT_THAT(errors[1], HasSubstr("a broken text"));
  EXPECT_EQ(errors[0], "rank 1 failed: a broken text");
  EXPECT_EQ(errors[2], "rank 1 failed: a broken text");
}

TEST(DistributedDataParallelTest, NamesTheRankWhoseBackwardFails) {
  const auto errors =
      RankThreads{.world_size = 3, .timeout = std::chrono::milliseconds(4000)}.run([](ProcessGroup& group) {
        SmallNet net;
        DistributedDataParallel ddp(net, group);
        for (int step = 0; step < 3; ++step) {
          auto output = ddp(at::randn({2, 3}));
          output.register_hook(
              [&, step](const at::Tensor&) { TORCH_CHECK(group.rank() != 1 || step < 1, "a broken gradient"); });
          ddp.backward(output.sum());
        }
      });
  EXPECT_THAT(errors[1], HasSubstr("a broken gradient"));
  EXPECT_EQ(errors[0], "rank 1 failed: a broken gradient");
  EXPECT_EQ(errors[2], "rank 1 failed: a broken gradient");
}

TEST(DistributedDataParallelTest, CountsWhatTheHookSends) {
  const auto errors = RankThreads{}.run([](ProcessGroup& group) {
    SmallNet net;
    DistributedDataParallel ddp(net, group);
    ddp.register_comm_hook(fp16_compress_hook);
    for (int step = 0; step < 2; ++step) {
      ddp.backward(ddp(at::randn({2, 3})).square().sum());
    }
    const auto stats = ddp.comm_stats();
    EXPECT_EQ(stats.steps, 2);
    EXPECT_EQ(stats.buckets, 2);
    EXPECT_EQ(stats.gradient_bytes, 2 * 2 * (12 + 4 + 4 + 4));
    EXPECT_GE(stats.seconds, stats.exposed_seconds);
    group.shutdown();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

}  // namespace
}  // namespace mezzo::distributed
