#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include "amp/grad_scaler_fixture.h"
#include "mezzo/amp/overflow_report.h"
#include "mezzo/amp/scale_advice.h"
#include "mezzo/optim/adam.h"
#include "mezzo/optim/clip_grad.h"
#include "mezzo/optim/sgd.h"
#include "simulated/device_test.h"

/// A GradScaler whose gradients are on devices: the places in which it waits. It never reads data
/// that have not arrived. The rest of its numbers: training_test.cpp.

namespace mezzo::simulated {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr const char* kRead = "aten::_local_scalar_dense";  // of a number, by the host

class GradScalerDeviceTest : public DeviceTest {
 protected:
  at::Tensor weights_on(c10::Device where, int64_t size = 2) const { return at::ones({size}, where).requires_grad_(); }
  /// The gradient of `weight`, from memory that is there already.
  at::Tensor gradient(const std::vector<float>& values, c10::Device where) const {
    return at::tensor(values).to(where);
  }
  static void backward(GradScaler& scaler, const at::Tensor& weight, const at::Tensor& gradient) {
    scaler.scale((weight * gradient).sum()).backward();
  }
  static void expect_equal(const at::Tensor& tensor, const std::vector<float>& values) {
    EXPECT_TRUE(at::allclose(tensor.detach().cpu(), at::tensor(values), 1e-5)) << tensor.cpu();
  }
};

TEST_F(GradScalerDeviceTest, DecidesOnTheDeviceUnlessItIsAsked) {
  auto weight = weights_on(device);
  mezzo::SGD optimizer({{"weight", weight}}, SGDOptions().lr(0.5));
  const auto good = gradient({1, -2}, device), bad = gradient({1, kInf}, device);
  GradScaler scaler(GradScalerOptions().init_scale(8));
  const auto step = [&](const at::Tensor& of) {
    optimizer.zero_grad();
    backward(scaler, weight, of);
    auto result = scaler.step(optimizer);
    scaler.update();
    return result;
  };
  const Watch watch;
  const auto first = step(good), second = step(bad), third = step(good);
  EXPECT_THAT(watch.host_syncs(), IsEmpty());
  EXPECT_TRUE(first.stepped() && !second.stepped() && third.stepped());
  EXPECT_THAT(watch.host_syncs(), ElementsAre(kRead, kRead, kRead));
  EXPECT_TRUE(first.stepped() && !second.stepped()) << "who is told once remembers";
  EXPECT_THAT(watch.host_syncs(), SizeIs(3));
  EXPECT_EQ(scaler.get_scale(), 4);
  EXPECT_EQ(scaler.get_growth_tracker(), 1);
  EXPECT_EQ(scaler.get_skipped_steps(), 1);
  EXPECT_THAT(watch.host_syncs(), SizeIs(6));
  expect_equal(weight, {0, 3});
}

TEST_F(GradScalerDeviceTest, WaitsOnceForAnOptimizerThatDecidesNothing) {
  auto weight = weights_on(device);
  torch::optim::SGD sgd({weight}, 0.5);
  const auto good = gradient({1, -2}, device), bad = gradient({1, kNaN}, device);
  GradScaler scaler(GradScalerOptions().init_scale(8));
  for (const auto& [of, steps] : {std::pair(good, true), {bad, false}}) {
    const Watch watch;
    sgd.zero_grad();
    backward(scaler, weight, of);
    EXPECT_EQ(scaler.step(sgd).stepped(), steps);
    scaler.update();
    EXPECT_THAT(watch.host_syncs(), ElementsAre(kRead));
  }
  expect_equal(weight, {0.5, 2});
  EXPECT_EQ(scaler.get_scale(), 4);
}

TEST_F(GradScalerDeviceTest, ServesSeveralOptimizersAndLosses) {
  auto a = weights_on(device), b = weights_on(device);
  mezzo::SGD first({{"a", a}}, SGDOptions().lr(0.5));
  FusedSgd second({b}, 0.5);
  const auto good = gradient({1, -2}, device), bad = gradient({1, kInf}, device);
  GradScaler scaler(GradScalerOptions().init_scale(8));
  const Watch watch;
  const auto losses = scaler.scale({(a * good).sum(), (b * bad).sum()});
  (losses[0] + losses[1]).backward();
  scaler.unscale_(second);
  const auto of_first = scaler.step(first), of_second = scaler.step(second);
  scaler.update();
  EXPECT_THAT(watch.host_syncs(), IsEmpty());
  EXPECT_TRUE(of_first.stepped() && !of_second.stepped());
  expect_equal(a, {0.5, 2});
  expect_equal(b, {1, 1});
  EXPECT_EQ(scaler.get_scale(), 4) << "one of them was skipped";
}

TEST_F(GradScalerDeviceTest, TakesGradientsOfTwoDevices) {
  for (const bool overflows : {false, true}) {
    auto a = weights_on(device), b = weights_on(other_device);
    mezzo::SGD optimizer({{"a", a}, {"b", b}}, SGDOptions().lr(0.5).max_grad_norm(100));
    const auto of_a = gradient({3, 0}, device), of_b = gradient({0, overflows ? kInf : 4}, other_device);
    GradScaler scaler(GradScalerOptions().init_scale(8));
    const Watch watch;
    const auto losses = scaler.scale({(a * of_a).sum(), (b * of_b).sum()});
    torch::autograd::backward(losses);
    const auto result = scaler.step(optimizer);
    scaler.update();
    EXPECT_THAT(watch.host_syncs(), IsEmpty());
    EXPECT_EQ(result.stepped(), !overflows);
    if (!overflows) {
      EXPECT_EQ(optimizer.grad_norm().item<float>(), 5);
      EXPECT_EQ(optimizer.grad_norm().device(), device);
    }
    expect_equal(b, {1, overflows ? 1.0f : -1.0f});
  }
}

/// `found_inf`, scales and norms come to the CPU here, and are read. Without a wait they read as
/// NaN.
TEST_F(GradScalerDeviceTest, WaitsForWhatComesToTheCpu) {
  auto here = weights_on(at::kCPU), there = weights_on(device);
  mezzo::SGD optimizer({{"here", here}, {"there", there}}, SGDOptions().lr(0.5));
  torch::optim::SGD sgd({here, there}, 0.5);
  const auto of_here = gradient({3, 0}, at::kCPU), of_there = gradient({0, 4}, device);
  for (const bool starts_here : {false, true}) {
    GradScaler scaler(GradScalerOptions().init_scale(8));
    const auto backward_both = [&] {
      optimizer.zero_grad();
      std::vector<at::Tensor> losses{(here * of_here).sum(), (there * of_there).sum()};
      if (!starts_here) {
        std::swap(losses[0], losses[1]);
      }
      torch::autograd::backward(scaler.scale(losses));
    };
    backward_both();
    EXPECT_TRUE(scaler.step(optimizer).stepped());
    scaler.update();
    backward_both();
    scaler.unscale_(sgd);
    EXPECT_EQ(clip_grad_norm_({here, there}, 2.5).item<float>(), 5);
    EXPECT_NEAR(clip_grad_norm_({there, here}, 100).item<float>(), 2.5, 1e-5);
    EXPECT_TRUE(scaler.step(sgd).stepped());
    scaler.update();
    EXPECT_EQ(scaler.get_growth_tracker(), 2);
  }
  expect_equal(here, {1 - 2 * 1.5f - 2 * 0.75f, 1});
  expect_equal(there, {1, 1 - 2 * 2 - 2 * 1});
}

TEST_F(GradScalerDeviceTest, ClipsWithoutWaiting) {
  const auto a = weights_on(device), b = weights_on(other_device);
  a.mutable_grad() = gradient({3, 0}, device);
  b.mutable_grad() = gradient({0, 4}, other_device);
  const Watch watch;
  const auto norm = clip_grad_norm_({a, b}, 1);
  const auto largest = clip_grad_norm_({a, b}, 1, kInf);
  clip_grad_value_({a, b}, 0.7);
  EXPECT_THAT(watch.host_syncs(), IsEmpty());
  EXPECT_EQ(norm.item<float>(), 5);
  EXPECT_NEAR(largest.item<float>(), 0.8, 1e-6);
  expect_equal(b.grad(), {0, 0.7f});
}

TEST_F(GradScalerDeviceTest, SetsTheScaleWithoutWaiting) {
  GradScaler scaler(GradScalerOptions().init_scale(8).max_scale(64));
  scaler.scale(at::ones({}, device));
  const auto thousand = at::full({1}, 1000.0f, device);
  const Watch watch;
  scaler.update(16.0);
  scaler.update(thousand);
  scaler.set_growth_interval(3);
  scaler.load_state_dict({{"scale", 2.0},
                          {"growth_factor", 2.0},
                          {"backoff_factor", 0.5},
                          {"growth_interval", int64_t{7}},
                          {"_growth_tracker", int64_t{5}}});
  scaler.update(thousand);
  EXPECT_THAT(watch.host_syncs(), IsEmpty());
  const auto state = scaler.state_dict();
  EXPECT_EQ(state.at("scale").toDouble(), 64) << "clamped";
  EXPECT_EQ(state.at("_growth_tracker").toLong(), 5);
  EXPECT_THAT(watch.host_syncs(), ElementsAre(kRead, kRead));
}

TEST_F(GradScalerDeviceTest, LooksForAStuckRunOnlyEverySoOften) {
  auto weight = weights_on(device);
  mezzo::SGD optimizer({{"weight", weight}}, SGDOptions().lr(0.5));
  const auto bad = gradient({kNaN, kInf}, device);
  GradScaler scaler(GradScalerOptions().max_consecutive_skips(4));
  const auto step = [&] {
    optimizer.zero_grad();
    backward(scaler, weight, bad);
    scaler.step(optimizer);
    scaler.update();
  };
  const Watch watch;
  for (int i = 0; i < 3; ++i) {
    step();
  }
  EXPECT_THAT(watch.host_syncs(), IsEmpty());
  EXPECT_THAT(error_of(step), AllOf(HasSubstr("the last 4 iterations"), HasSubstr("1 inf, 1 NaN")));
}

TEST_F(GradScalerDeviceTest, DoesNotAskTheDeviceToWarnOfSkips) {
  auto weight = weights_on(device);
  mezzo::SGD optimizer({{"weight", weight}}, SGDOptions().lr(0.5));
  const auto bad = gradient({kNaN, kInf}, device);
  GradScaler scaler;
  const Watch watch;
  for (int i = 0; i < 55; ++i) {
    optimizer.zero_grad();
    backward(scaler, weight, bad);
    scaler.step(optimizer);
    scaler.update();
  }
  EXPECT_THAT(watch.host_syncs(), IsEmpty());
  EXPECT_EQ(scaler.get_skipped_steps(), 55);
}

TEST_F(GradScalerDeviceTest, RunsClosures) {
  const auto train = [](c10::Device where) {
    auto weight = at::tensor({3.0f, -2.0f}).to(where).requires_grad_();
    torch::optim::LBFGS lbfgs({weight}, torch::optim::LBFGSOptions(0.5).max_iter(4));
    mezzo::SGD sgd({{"weight", weight}}, SGDOptions().lr(0.1));
    const auto target = at::tensor({1.0f, 0.5f}).to(where);
    GradScaler scaler(GradScalerOptions().init_scale(8));
    const auto closure = [&] {
      sgd.zero_grad();
      const auto loss = (weight - target).square().sum();
      scaler.scale(loss).backward();
      return loss;
    };
    EXPECT_TRUE(scaler.step(lbfgs, closure).stepped());
    scaler.update();
    const Watch watch;
    const auto result = scaler.step(sgd, closure);
    scaler.update();
    EXPECT_THAT(watch.host_syncs(), IsEmpty());
    EXPECT_GT(result.loss().item<float>(), 0);
    return weight.detach().cpu();
  };
  EXPECT_TRUE(at::allclose(train(device), train(at::kCPU)));
}

TEST_F(GradScalerDeviceTest, AgreesWithoutWaiting) {
  auto weight = weights_on(device);
  mezzo::SGD optimizer({{"weight", weight}}, SGDOptions().lr(0.5));
  const auto good = gradient({1, -2}, device);
  GradScaler scaler(GradScalerOptions().found_inf_all_reduce([](at::Tensor& flags) { flags[0].fill_(1); }));
  const Watch watch;
  backward(scaler, weight, good);
  const auto result = scaler.step(optimizer);
  scaler.update();
  EXPECT_THAT(watch.host_syncs(), IsEmpty());
  EXPECT_FALSE(result.stepped()) << "another process had an overflow";
}

TEST_F(GradScalerDeviceTest, ReportsWhatArrived) {
  auto here = weights_on(at::kCPU, 3), there = weights_on(device, 3), far = weights_on(other_device, 3);
  here.mutable_grad() = gradient({1, kInf, 2}, at::kCPU);
  there.mutable_grad() = gradient({kNaN, kInf, 4}, device);
  far.mutable_grad() = gradient({1, 2, 3}, other_device);
  for (const std::vector<at::Tensor>& order : {std::vector{there, far, here}, {here, there, far}}) {
    torch::optim::SGD sgd(order, 0.5);
    const Watch watch;
    const auto report = overflow_report(sgd);
    EXPECT_EQ(report.num_gradients, 3);
    ASSERT_THAT(report.overflowed, SizeIs(2));
    for (const auto& found : report.overflowed) {
      const bool is_here = order[found.index].is_same(here);
      EXPECT_EQ(found.num_inf, 1);
      EXPECT_EQ(found.num_nan, is_here ? 0 : 1);
      EXPECT_EQ(found.largest_finite, is_here ? 2 : 4);
    }
    if (order[0].is_same(there)) {
      EXPECT_THAT(watch.host_syncs(), SizeIs(testing::Le(7))) << testing::PrintToString(watch.host_syncs());
    }
  }
}

TEST_F(GradScalerDeviceTest, CountsExponentsThatArrived) {
  const auto values = gradient({0, 1, 3, kInf, 0x1p-30f}, device);
  const Watch watch;
  const auto counts = count_gradient_exponents({{"a", {values, values}}, {"b", {values.to(other_device)}}}, 1);
  EXPECT_THAT(watch.host_syncs(), SizeIs(1)) << testing::PrintToString(watch.host_syncs());
  const auto on_cpu = count_gradient_exponents({{"a", {values.cpu(), values.cpu()}}, {"b", {values.cpu()}}}, 1);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(counts[i].counts, on_cpu[i].counts);
    EXPECT_EQ(counts[i].zeros, on_cpu[i].zeros);
    EXPECT_EQ(counts[i].non_finite, on_cpu[i].non_finite);
    EXPECT_EQ(counts[i].largest, on_cpu[i].largest);
  }
}

}  // namespace
}  // namespace mezzo::simulated
