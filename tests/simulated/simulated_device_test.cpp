#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/Event.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <thread>

#include "simulated/device_test.h"
#include "simulated/launch.h"

/// The results of the simulated devices, and the waits of the host for them. faults_test.cpp tests
/// the mistakes that they catch.

namespace mezzo::simulated {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using SimulatedDeviceTest = DeviceTest;

TEST_F(SimulatedDeviceTest, ComputesWithoutWaiting) {
  const auto a = at::arange(6, at::kFloat).view({2, 3}).to(device), b = at::ones({3}, device);
  const Watch watch;
  const auto c = (a + b).mul_(2).t().contiguous();
  EXPECT_THAT(watch.host_syncs(), IsEmpty());
  EXPECT_GT(watch.kernels(), 2);
  EXPECT_TRUE(at::equal(c.cpu(), at::tensor({2, 8, 4, 10, 6, 12}, at::kFloat).view({3, 2})));
  EXPECT_THAT(watch.host_syncs(), ElementsAre("copy_ to the CPU"));
}

/// A layer here and the same one there.
std::pair<torch::nn::Linear, torch::nn::Linear> two_layers(c10::Device device) {
  torch::manual_seed(1);
  const torch::nn::Linear here(3, 2);
  const auto there = std::dynamic_pointer_cast<torch::nn::LinearImpl>(here->clone());
  move_to(*there, device);
  return {here, torch::nn::Linear(there)};
}

TEST_F(SimulatedDeviceTest, TrainsALayerAtEitherPace) {
  for (const Pace pace : {Pace::kLate, Pace::kEager}) {
    set_pace(pace);
    auto [here, there] = two_layers(device);
    const auto x = at::randn({5, 3}), x_there = x.to(device);
    const Watch watch;
    there->forward(x_there).square().sum().backward();
    EXPECT_THAT(watch.host_syncs(), IsEmpty());
    here->forward(x).square().sum().backward();
    EXPECT_TRUE(at::allclose(there->weight.grad().cpu(), here->weight.grad()));
    EXPECT_TRUE(at::allclose(there->bias.grad().cpu(), here->bias.grad()));
  }
}

TEST_F(SimulatedDeviceTest, RunsBackwardOnTheStreamsOfForward) {
  auto [here, there] = two_layers(device);
  const auto x = at::randn({5, 3}), x_there = x.to(device);
  synchronize();
  at::Tensor loss;
  {
    const c10::StreamGuard on_side(Queue::create(device));
    loss = there->forward(x_there).square().sum();
  }
  const Watch watch;
  loss.backward();
  const auto sum = there->weight.grad().sum();  // on this stream, which the engine has put after the other
  EXPECT_THAT(watch.host_syncs(), IsEmpty());
  here->forward(x).square().sum().backward();
  EXPECT_TRUE(at::allclose(sum.cpu(), here->weight.grad().sum()));
  synchronize();
}

TEST_F(SimulatedDeviceTest, CopiesWaitAsThoseOfCudaMay) {
  const auto there = at::ones({4}, device);
  const auto here = at::ones({4}), pinned = at::ones({4}).pin_memory();
  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_FALSE(here.is_pinned());
  const auto waits = [](const auto& copy) {
    const Watch watch;
    copy();
    return !watch.host_syncs().empty();
  };
  EXPECT_TRUE(waits([&] { there.copy_(here); }));
  EXPECT_TRUE(waits([&] { there.copy_(here, /*non_blocking=*/true); }));
  EXPECT_TRUE(waits([&] { there.copy_(pinned); }));
  EXPECT_FALSE(waits([&] { there.copy_(pinned, /*non_blocking=*/true); }));
  EXPECT_TRUE(waits([&] { here.copy_(there); }));
  EXPECT_TRUE(waits([&] { here.copy_(there, /*non_blocking=*/true); }));
  EXPECT_TRUE(waits([&] { pinned.copy_(there); }));
  EXPECT_FALSE(waits([&] { pinned.copy_(there, /*non_blocking=*/true); }));
  EXPECT_FALSE(waits([&] { there.to(at::kCPU, at::kFloat, /*non_blocking=*/true); })) << "to memory that it pins";
  EXPECT_FALSE(waits([&] { there.clone().to(at::kHalf); }));
  EXPECT_FALSE(waits([&] { there.to(other_device).to(device); }));
}

TEST_F(SimulatedDeviceTest, CopiesBetweenDevicesInOrderWithBoth) {
  auto here = at::zeros({4}, device);
  auto there = at::zeros({4}, other_device);
  there += 1;
  here.copy_(there);
  there += 1;
  here += 10;
  there.copy_(here);
  here += 1;
  there += 100;
  EXPECT_TRUE(at::equal(there.cpu(), at::full({4}, 111.0f)));
  EXPECT_TRUE(at::equal(here.cpu(), at::full({4}, 12.0f)));
}

TEST_F(SimulatedDeviceTest, WaitsWhereValuesDecideOnSizes) {
  const auto x = at::tensor({3.0f, 0.0f, 5.0f}).to(device);
  const auto mask = x > 0;
  const auto syncs = [](const auto& call) {
    const Watch watch;
    call();
    return watch.host_syncs();
  };
  EXPECT_THAT(syncs([&] { EXPECT_EQ(x[2].item<float>(), 5); }), ElementsAre("aten::_local_scalar_dense"));
  EXPECT_THAT(syncs([&] { EXPECT_EQ(x.nonzero().sizes(), at::IntArrayRef({2, 1})); }), ElementsAre("aten::nonzero"));
  EXPECT_THAT(syncs([&] { EXPECT_EQ(x.masked_select(mask).numel(), 2); }), ElementsAre("aten::masked_select"));
  EXPECT_THAT(syncs([&] { EXPECT_EQ(x.index({mask}).numel(), 2); }), ElementsAre("aten::index.Tensor"));
  EXPECT_THAT(syncs([&] { x.clone().index_put_({mask}, at::ones({}, device)); }), testing::SizeIs(1));
  EXPECT_THAT(syncs([&] { EXPECT_TRUE(at::equal(x, x)); }), ElementsAre("aten::equal"));
  EXPECT_THAT(syncs([&] { x.index({at::ones({2}, at::kLong)}); }), ElementsAre("indices from pageable memory"));
  EXPECT_THAT(syncs([&] { x.index({at::ones({2}, x.options().dtype(at::kLong))}); }), IsEmpty());
  EXPECT_THAT(syncs([&] { x.masked_fill(mask, 1).clamp_(0, 2).where(mask, at::zeros({})); }), IsEmpty());
}

/// Outputs given, lists, in place, views, and sizes that no Meta kernel tells.
TEST_F(SimulatedDeviceTest, TakesEveryKindOfOperator) {
  torch::manual_seed(2);
  const auto x = at::randn({4, 6}), y = at::rand({4, 6});
  const auto compute = [&](c10::Device on) {
    const auto a = x.to(on), b = y.to(on);
    std::vector<at::Tensor> results{at::empty({0}, a.options()), at::empty({0}, a.options())};
    at::add_out(results[0], a, b);
    at::linalg_norm_out(results[1], a);
    std::vector<at::Tensor> list{a.clone(), b.clone()};
    at::_foreach_mul_(list, 3);
    at::_foreach_add_(list, {b, a}, 2);
    for (const auto& tensors : {list, at::_foreach_norm(list), a.unbind(1), a.split(3, 1)}) {
      results.insert(results.end(), tensors.begin(), tensors.end());
    }
    results.push_back(at::mse_loss(a, b));
    results.push_back(at::histc(a, 5, -1, 1));
    results.push_back(std::get<1>(at::frexp(b)).to(at::kFloat));
    results.push_back(at::cat({a, b}).t().slice(0, 1, 6, 2).contiguous());
    results.push_back(at::layer_norm(a, {6}));
    results.push_back(at::embedding(a, at::tensor({3, 0}, at::TensorOptions(on).dtype(at::kLong))));
    results.push_back(std::get<0>(a.sort(1)).view({3, 8}).as_strided({2, 2}, {8, 3}, 1));
    results.push_back(at::tensor({7.0f}).to(on).resize_({3}).narrow(0, 0, 1));
    results.push_back(a.to(at::kBFloat16).matmul(b.t().to(at::kBFloat16)).to(at::kFloat));
    results.push_back(at::gelu(a).cumsum(0).argmax(1).to(at::kFloat));
    results.push_back(a.unfold(1, 2, 2) + at::arange(2, a.options()));
    return results;
  };
  const auto here = compute(at::kCPU), there = compute(device);
  for (size_t i = 0; i < here.size(); ++i) {
    EXPECT_TRUE(at::allclose(here[i], there[i].cpu(), 1e-5, 1e-6, /*equal_nan=*/true))
        << i << here[i] << there[i].cpu();
  }
}

TEST_F(SimulatedDeviceTest, DrawsFromEachDevicesGenerator) {
  torch::manual_seed(3);
  const auto a = at::randn({5}, device), b = at::randn({5}, device);
  const auto on_other = at::randn({5}, other_device);
  const auto on_cpu = at::rand({1});
  torch::manual_seed(3);
  EXPECT_TRUE(at::equal(on_cpu, at::rand({1}))) << "the CPU's numbers stay as they are";
  EXPECT_TRUE(at::equal(a, at::randn({5}, device)));
  EXPECT_TRUE(at::equal(b, at::randn({5}, device)));
  EXPECT_FALSE(at::equal(a, b));
  EXPECT_TRUE(at::equal(a.cpu(), on_other.cpu())) << "they are seeded alike";
  const auto dropped = at::dropout(at::ones({1000}, device), 0.25, /*train=*/true);
  EXPECT_NEAR((dropped == 0).sum().item<double>(), 250, 50);
  EXPECT_NEAR(dropped.sum().item<double>(), 1000, 70);
  auto generator = at::globalContext().defaultGenerator(device);
  const auto state = generator.get_state();
  const auto c = at::rand({5}, device);
  generator.set_state(state);
  EXPECT_TRUE(at::equal(c, at::rand({5}, device)));
}

TEST_F(SimulatedDeviceTest, HasAutocast) {
  const auto x = at::ones({2, 2}, device);
  at::autocast::set_autocast_enabled(kType, true);
  EXPECT_EQ(x.matmul(x).scalar_type(), at::kHalf);
  EXPECT_EQ(x.to(at::kHalf).softmax(0).scalar_type(), at::kFloat);
  at::autocast::set_autocast_enabled(kType, false);
  EXPECT_EQ(x.matmul(x).scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace mezzo::simulated
