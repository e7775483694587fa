#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/cast_log.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/optim/sgd.h"
#include "mezzo/parallel/data_parallel.h"
#include "simulated/device_test.h"

/// DataParallel over two devices: its copies are in order with the devices' work, and the host does
/// not wait for them.

namespace mezzo::simulated {
namespace {

using testing::IsEmpty;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(6, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(16).affine(false)));
    out = register_module("out", torch::nn::Linear(16, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return out(norm(torch::tanh(hidden(x)))); }
  torch::nn::Linear hidden = nullptr, out = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
};

std::shared_ptr<NetImpl> net_on(c10::Device where) {
  torch::manual_seed(7);
  auto net = std::make_shared<NetImpl>();
  net->eval();
  if (where != at::kCPU) {
    move_to(*net, where);
  }
  return net;
}

class DataParallelDeviceTest : public DeviceTest {
 protected:
  DataParallel<NetImpl> on_both(const std::shared_ptr<NetImpl>& net) const {
    return DataParallel<NetImpl>(net, DataParallelOptions().devices({device, other_device}), net_on);
  }

  /// Three steps, each on new data that comes into being on the device.
  template <class Model>
  static std::vector<at::Tensor> train(Model&& model, const std::shared_ptr<NetImpl>& net, c10::Device where) {
    mezzo::SGD optimizer(*net, SGDOptions().lr(0.1).max_grad_norm(1));
    GradScaler scaler(GradScalerOptions().init_scale(8));
    const auto data = at::linspace(-1, 1, 5 * 6).view({5, 6}).to(where);
    std::optional<Watch> later;  // when replicas and their memory are there
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      scaler.scale(model(data * (i + 1)).square().sum()).backward();
      scaler.step(optimizer);
      scaler.update();
      if (!later) {
        later.emplace();
      }
    }
    EXPECT_THAT(later->host_syncs(), IsEmpty());
    std::vector<at::Tensor> weights;
    for (const auto& parameter : net->parameters()) {
      weights.push_back(parameter.detach().cpu());
    }
    return weights;
  }
};

TEST_F(DataParallelDeviceTest, TrainsAsOneDeviceDoesAtEitherPace) {
  const auto alone = net_on(at::kCPU);
  const auto expected = train([&](const at::Tensor& x) { return alone->forward(x); }, alone, at::kCPU);
  for (const Pace pace : {Pace::kLate, Pace::kEager}) {
    set_pace(pace);
    const auto net = net_on(device);
    auto model = on_both(net);
    const auto weights = train(model, net, device);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::allclose(weights[i], expected[i], 1e-5, 1e-6)) << i;
    }
  }
}

TEST_F(DataParallelDeviceTest, WorksOnTheCallersStreams) {
  const auto net = net_on(device);
  auto model = on_both(net);
  synchronize();
  at::globalContext().setWarnOnAccumulateGradStreamMismatch(false);  // of gradients from another device
  set_current_stream(Queue::create(other_device));
  const c10::StreamGuard on_side(Queue::create(device));
  const auto x = at::ones({4, 6}, device);
  for (int i = 0; i < 2; ++i) {
    const auto y = model(x * 2);
    y.sum().backward();
    EXPECT_TRUE(at::allclose(y.cpu(), net_on(at::kCPU)->forward(at::full({4, 6}, 2.0f)), 1e-5, 1e-6));
  }
  synchronize();
}

TEST_F(DataParallelDeviceTest, TakesABatchFromTheCpuAndGivesItWhereItIsAsked) {
  const auto net = net_on(device);
  const auto x = at::randn({4, 6});
  const auto expected = net_on(at::kCPU)->forward(x);
  for (const auto& input : {x, x.pin_memory()}) {
    for (const auto output : {c10::Device(at::kCPU), other_device}) {
      auto model = DataParallel<NetImpl>(
          net, DataParallelOptions().devices({device, other_device}).output_device(output), net_on);
      const auto y = model(input);
      EXPECT_EQ(y.device(), output);
      EXPECT_TRUE(at::allclose(y.cpu(), expected, 1e-5, 1e-6));
    }
  }
}

TEST_F(DataParallelDeviceTest, ADeviceWithoutAnIndexIsTheCurrentOne) {
  const auto net = net_on(other_device);
  const c10::DeviceGuard guard(other_device);
  auto model = DataParallel<NetImpl>(net, DataParallelOptions().devices({c10::Device(kType), device}), net_on);
  EXPECT_EQ(model(at::ones({4, 6}, device)).device(), other_device);
  set_current_device(0);
  EXPECT_THROW(DataParallel<NetImpl>(net, DataParallelOptions().devices({c10::Device(kType)}), net_on),
               c10::ValueError);
}

TEST_F(DataParallelDeviceTest, MakingReplicasDrawsNoNumberOfTheDevice) {
  const auto net = net_on(device);
  auto model = DataParallel<NetImpl>(net, DataParallelOptions().devices({device, other_device}), [](c10::Device where) {
    auto made = net_on(where);
    made->parameters()[0].detach().normal_();
    return made;
  });
  torch::manual_seed(5);
  const auto expected = at::rand({3}, other_device);
  torch::manual_seed(5);
  model(at::ones({4, 6}, device));
  EXPECT_TRUE(at::equal(at::rand({3}, other_device), expected));
}

TEST_F(DataParallelDeviceTest, HoldsAutocastInEveryReplica) {
  const auto net = net_on(device);
  auto model = on_both(net);
  CastLog log;
  const AutocastGuard autocast(kType, at::kHalf, AutocastOptions().log(&log));
  const auto y = model(at::ones({4, 6}, device));
  EXPECT_EQ(y.scalar_type(), at::kHalf);
  ASSERT_EQ(log.entries().size(), 1);
  EXPECT_EQ(log.entries()[0].count, 2 * 5) << "the input, and weight and bias of two layers" << log.to_table();
}

}  // namespace
}  // namespace mezzo::simulated
