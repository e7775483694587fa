#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "mezzo/amp/grad_scaler.h"
#include "mezzo/distributed/data_parallel/comm_hooks.h"
#include "mezzo/distributed/data_parallel/distributed_data_parallel.h"
#include "mezzo/distributed/group/process_group.h"
#include "mezzo/distributed/zero/zero_redundancy_optimizer.h"
#include "mezzo/optim/adam.h"
#include "mezzo/optim/sgd.h"
#include "not_finite.h"
#include "simulated/device_ranks.h"
#include "simulated/device_test.h"

/// Two ranks with a device each. Their communication is in order with their computation, and no
/// host waits.

namespace mezzo::distributed {
namespace {

using simulated::kType;
using simulated::Watch;
using testing::Each;
using testing::IsEmpty;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    torch::manual_seed(7);
    hidden = register_module("hidden", torch::nn::Linear(6, 16));
    out = register_module("out", torch::nn::Linear(16, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return out(torch::tanh(hidden(x))); }
  torch::nn::Linear hidden = nullptr, out = nullptr;
};

class DistributedDeviceTest : public simulated::DeviceTest {
 protected:
  /// Calls `work` on two ranks, each with its device current.
  static void on_two_ranks(const std::function<void(ProcessGroup& group, c10::Device device)>& work) {
    const auto errors = simulated::DeviceRanks().run([&](ProcessGroup& group, c10::Device device) {
      work(group, device);
      group.shutdown();
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
  }
};

/// Made before the ranks begin: they would draw from one generator.
std::vector<std::shared_ptr<NetImpl>> nets(size_t count) {
  std::vector<std::shared_ptr<NetImpl>> all;
  for (size_t i = 0; i < count; ++i) {
    all.push_back(std::make_shared<NetImpl>());
  }
  return all;
}

at::Tensor rows(int rank) { return at::linspace(-1, 1, 2 * 4 * 6).view({2, 4, 6})[rank]; }

TEST_F(DistributedDeviceTest, AllReduceFollowsTheStreams) {
  on_two_ranks([](ProcessGroup& group, c10::Device mine) {
    auto x = at::full({3}, group.rank() + 1.0f, mine);
    const Watch watch;
    x += 1;
    group.all_reduce(x);
    const auto y = x * 2;
    group.all_reduce(x, c10d::ReduceOp::MAX);
    x += 1;
    group.broadcast(x, 1);
    EXPECT_THAT(watch.host_syncs(), IsEmpty());
    group.barrier();
    EXPECT_TRUE(at::equal(y.cpu(), at::full({3}, 10.0f)));
    EXPECT_TRUE(at::equal(x.cpu(), at::full({3}, 6.0f)));
    group.barrier();
  });
}

TEST_F(DistributedDeviceTest, DataParallelTrainsAsOneProcessDoes) {
  for (const bool compresses : {false, true}) {
    for (const bool views : {false, true}) {
      set_pace(views ? simulated::Pace::kEager : simulated::Pace::kLate);
      const auto models = nets(3);
      {
        mezzo::SGD optimizer(*models[2], SGDOptions().lr(0.1).max_grad_norm(1));
        for (int step = 0; step < 4; ++step) {
          optimizer.zero_grad();
          ((models[2]->forward(rows(0)).square().sum() + models[2]->forward(rows(1)).square().sum()) / 2).backward();
          optimizer.step();
        }
      }
      on_two_ranks([&](ProcessGroup& group, c10::Device mine) {
        const auto& net = models[static_cast<size_t>(group.rank())];
        simulated::move_to(*net, mine);
        DistributedDataParallel<NetImpl> model(
            net, group, DistributedDataParallelOptions().gradient_as_bucket_view(views).bucket_cap_mb(0.0002));
        if (compresses) {
          model.register_comm_hook(fp16_compress_hook);
        }
        mezzo::SGD optimizer(*net, SGDOptions().lr(0.1).max_grad_norm(1));
        GradScaler scaler(GradScalerOptions().init_scale(8));
        const auto x = rows(group.rank()).to(mine);
        std::optional<Watch> later;  // the reducer learns the order of gradients in one step, and tells it in the next
        for (int step = 0; step < 4; ++step) {
          scaler.scale(model.forward(x).square().sum()).backward();
          scaler.step(optimizer);
          scaler.update();
          for (const auto& parameter : net->parameters()) {
            parameter.grad().zero_();
          }
          if (step == 1) {
            group.barrier();
            later.emplace();
            group.barrier();
          }
        }
        EXPECT_THAT(later->host_syncs(), IsEmpty());
        group.barrier();
        for (size_t i = 0; i < net->parameters().size(); ++i) {
          const double tolerance = compresses ? 2e-3 : 1e-5;
          EXPECT_TRUE(at::allclose(net->parameters()[i].cpu(), models[2]->parameters()[i], tolerance, tolerance)) << i;
        }
        group.barrier();
      });
    }
  }
}

TEST_F(DistributedDeviceTest, ShardedOptimizersStepAsAWholeOne) {
  const auto models = nets(3);
  const auto make = [](const std::vector<NamedParameter>& parameters) {
    return std::make_unique<AdamW>(parameters, AdamWOptions().lr(0.05).max_grad_norm(0.5));
  };
  const auto set_gradients = [](const NetImpl& net, int step) {
    for (const auto& parameter : net.parameters()) {
      parameter.mutable_grad() = parameter.detach() * (step + 1.0);
      if (step == 1) {
        parameter.mutable_grad().mul_(kInf);  // of which one rank's share would do
      }
    }
  };
  const auto whole = make(named_parameters(*models[2]));
  for (int step = 0; step < 3; ++step) {
    set_gradients(*models[2], step);
    whole->step();
  }
  on_two_ranks([&](ProcessGroup& group, c10::Device mine) {
    const auto& net = *models[static_cast<size_t>(group.rank())];
    simulated::move_to(net, mine);
    ZeroRedundancyOptimizer optimizer(group, make(named_parameters(net)));
    group.barrier();
    const Watch watch;
    group.barrier();
    for (int step = 0; step < 3; ++step) {
      set_gradients(net, step);
      optimizer.step();
    }
    EXPECT_THAT(watch.host_syncs(), IsEmpty());
    group.barrier();
    for (size_t i = 0; i < net.parameters().size(); ++i) {
      EXPECT_TRUE(at::allclose(net.parameters()[i].cpu(), models[2]->parameters()[i], 1e-5, 1e-6)) << i;
    }
    EXPECT_NEAR(optimizer.grad_norm().item<float>(), whole->grad_norm().item<float>(), 1e-4);
    group.barrier();
  });
}

TEST_F(DistributedDeviceTest, RanksAgreeOnOverflowsWithoutWaiting) {
  on_two_ranks([](ProcessGroup& group, c10::Device mine) {
    auto weight = at::ones({2}, mine).requires_grad_();
    mezzo::SGD optimizer({{"weight", weight}}, SGDOptions().lr(0.5));
    GradScaler scaler(GradScalerOptions().init_scale(8).found_inf_all_reduce(all_reduce_found_inf(group)));
    const auto factor = at::full({}, group.rank() == 1 ? kInf : 1.0f, mine);
    group.barrier();
    const Watch watch;
    scaler.scale((weight * factor).sum()).backward();
    const auto result = scaler.step(optimizer);
    scaler.update();
    EXPECT_THAT(watch.host_syncs(), IsEmpty());
    group.barrier();
    EXPECT_FALSE(result.stepped());
    EXPECT_EQ(scaler.get_scale(), 4);
    group.barrier();
  });
}

}  // namespace
}  // namespace mezzo::distributed
