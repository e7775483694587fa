#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "amp/grad_scaler_fixture.h"
#include "mezzo/optim/sgd.h"

namespace mezzo {
namespace {

TEST(GradScalerTest, StepsOnUnscaledGradients) {
  auto weight = weights();
  auto sgd = sgd_for({weight});
  GradScaler scaler;
  backward(scaler, weight, {1.0f, -2.0f});
  EXPECT_TRUE(torch::equal(weight.grad(), torch::tensor({65536.0f, -131072.0f})));

  const auto result = scaler.step(sgd);
  scaler.update();

  EXPECT_TRUE(result.stepped());
  EXPECT_EQ(result.found_inf().item<float>(), 0.0f);
  EXPECT_FALSE(result.loss().defined());
  EXPECT_TRUE(torch::equal(weight.grad(), torch::tensor({1.0f, -2.0f})));
  EXPECT_TRUE(torch::equal(weight, torch::tensor({0.5f, 2.0f}))) << weight;
  EXPECT_EQ(scaler.get_growth_tracker(), 1);
}

TEST(GradScalerTest, SkipsStepAndBacksOffWhenAGradientIsInfOrNaN) {
  for (const float bad : {kInf, -kInf, kNaN}) {
    auto weight = weights();
    auto sgd = sgd_for({weight});
    GradScaler scaler(GradScalerOptions().init_scale(8.0));
    backward(scaler, weight, {1.0f, bad});

    const auto result = scaler.step(sgd);
    scaler.update();

    EXPECT_FALSE(result.stepped());
    EXPECT_EQ(result.found_inf().item<float>(), 1.0f);
    EXPECT_TRUE(torch::equal(weight, torch::ones({2}))) << weight;
    EXPECT_EQ(scaler.get_scale(), 4.0);
    EXPECT_EQ(scaler.get_growth_tracker(), 0);
  }
}

/// The warnings while it lives.
class Warnings : public c10::WarningHandler {
 public:
  Warnings() : guard_(this) {}
  void process(const c10::Warning& warning) override { messages.push_back(warning.msg()); }
  std::vector<std::string> messages;

 private:
  const c10::WarningUtils::WarningHandlerGuard guard_;
};

/// Zeroes gradients only after a good step; returns how many steps were skipped.
template <class Optimizer>
int train_without_zeroing_after_skips(GradScaler& scaler,
                                      const torch::Tensor& weight,
                                      Optimizer& optimizer,
                                      int steps) {
  int skipped = 0;
  for (int i = 0; i < steps; ++i) {
    backward(scaler, weight, {i == 0 ? kInf : 1.0f, 1.0f});
    if (scaler.step(optimizer).stepped()) {
      optimizer.zero_grad();
    } else {
      ++skipped;
    }
    scaler.update();
  }
  return skipped;
}

TEST(GradScalerTest, WarnsOnceOfMoreThanFiftySkipsInARow) {
  const auto check = [](auto& optimizer, const torch::Tensor& weight) {
    const Warnings warnings;
    GradScaler scaler;
    EXPECT_EQ(train_without_zeroing_after_skips(scaler, weight, optimizer, 50), 50);
    EXPECT_THAT(warnings.messages, testing::IsEmpty());
    EXPECT_EQ(train_without_zeroing_after_skips(scaler, weight, optimizer, 60), 60);
    ASSERT_THAT(warnings.messages, testing::SizeIs(1));
    EXPECT_THAT(warnings.messages.front(),
                testing::AllOf(testing::StartsWith("GradScaler: more than 50 iterations in a row were skipped, and the "
                                                   "scale is 5.8"),  // 65536 / 2^50
                               testing::HasSubstr("call zero_grad() in every iteration"),
                               testing::HasSubstr("max_consecutive_skips")));
  };
  const auto weight = weights(), other = weights();
  auto unscaled = sgd_for({weight});
  check(unscaled, weight);
  SGD applies_it_itself({{"weight", other}}, SGDOptions().lr(0.5));
  check(applies_it_itself, other);
}

TEST(GradScalerTest, DoesNotWarnOfSkipsWithGoodStepsAmongThem) {
  const Warnings warnings;
  const auto weight = weights();
  auto sgd = sgd_for({weight});
  GradScaler scaler;
  for (int i = 0; i < 120; ++i) {
    sgd.zero_grad();
    backward(scaler, weight, {i % 40 == 0 ? 1.0f : kNaN, 1.0f});
    scaler.step(sgd);
    scaler.update();
  }
  EXPECT_THAT(warnings.messages, testing::IsEmpty());
}

/// MPS has no float64. (1 / scale is computed in float32 there, as in PyTorch.)
TEST(GradScalerTest, KeepsNoFloat64OnTheDevice) {
  static int64_t num_float64;
  num_float64 = 0;
  const auto look = [](const at::RecordFunction& function, at::ObserverContext*) {
    for (const auto& output : function.outputs()) {
      num_float64 += output.isTensor() && output.toTensor().scalar_type() == at::kDouble ? 1 : 0;
    }
  };
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(nullptr, look).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
  GradScaler scaler(GradScalerOptions().hysteresis(2).max_consecutive_skips(9));
  const auto loss = scaler.scale(torch::ones({}));
  scaler.update(2.0);
  at::removeCallback(handle);
  EXPECT_EQ(num_float64, 0);
}

TEST(GradScalerTest, GrowsAfterGrowthIntervalGoodStepsInARow) {
  auto weight = weights();
  auto sgd = sgd_for({weight});
  GradScaler scaler(GradScalerOptions().init_scale(8.0).growth_interval(2).growth_factor(4.0).backoff_factor(0.25));
  std::vector<double> scales;
  for (const float gradient : {1.0f, kInf, 1.0f, 1.0f, 1.0f, 1.0f}) {
    sgd.zero_grad();
    backward(scaler, weight, {gradient, 1.0f});
    scaler.step(sgd);
    scaler.update();
    scales.push_back(scaler.get_scale());
  }
  EXPECT_THAT(scales, testing::ElementsAre(8.0, 2.0, 2.0, 8.0, 8.0, 32.0));
}

TEST(GradScalerTest, KeepsTheScaleWithinItsBounds) {
  auto weight = weights();
  auto sgd = sgd_for({weight});
  GradScaler scaler(GradScalerOptions().init_scale(4.0).min_scale(2.0).max_scale(16.0).growth_interval(1));
  for (int i = 0; i < 5; ++i) {
    sgd.zero_grad();
    backward(scaler, weight, {1.0f, 1.0f});
    scaler.step(sgd);
    scaler.update();
  }
  EXPECT_EQ(scaler.get_scale(), 16.0);
  for (int i = 0; i < 6; ++i) {
    sgd.zero_grad();
    backward(scaler, weight, {kInf, 1.0f});
    scaler.step(sgd);
    scaler.update();
  }
  EXPECT_EQ(scaler.get_scale(), 2.0);
}

TEST(GradScalerTest, KeepsAStaticScaleButSkipsOverflows) {
  auto weight = weights();
  auto sgd = sgd_for({weight});
  GradScaler scaler(GradScalerOptions().init_scale(8.0).growth_interval(1).static_scale(true));
  for (const float gradient : {1.0f, kInf}) {
    sgd.zero_grad();
    backward(scaler, weight, {gradient, 1.0f});
    EXPECT_EQ(scaler.step(sgd).stepped(), std::isfinite(gradient));
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 8.0);
  }
  scaler.update(4.0);
  EXPECT_EQ(scaler.get_scale(), 4.0);
  EXPECT_THAT(error_of([&] { scaler.update(); }), testing::StartsWith("GradScaler: update() was called, but no gradi"));
}

TEST(GradScalerTest, ScalesOnTheOutputsDtypeRules) {
  GradScaler scaler(GradScalerOptions().init_scale(4.0));
  const auto half = torch::full({}, 2.0, torch::kHalf);
  EXPECT_EQ(scaler.scale(half).scalar_type(), torch::kFloat) << "as in PyTorch: a 0-dim half loss becomes float32";
  EXPECT_EQ(scaler.scale(half.reshape({1})).scalar_type(), torch::kHalf);
  EXPECT_EQ(scaler.scale(torch::ones({}, torch::kDouble)).scalar_type(), torch::kDouble);
  const auto list = scaler.scale({half, torch::ones({2})});
  ASSERT_EQ(list.size(), 2);
  EXPECT_TRUE(torch::equal(list[0], torch::full({}, 8.0)));
  EXPECT_TRUE(torch::equal(list[1], torch::full({2}, 4.0)));
  EXPECT_TRUE(scaler.scale(at::TensorList{}).empty());
}

template <class T>
concept CanScale = requires(GradScaler& scaler, T value) { scaler.scale(value); };

TEST(GradScalerTest, ScalesEveryTensorOfAStructure) {
  GradScaler scaler(GradScalerOptions().init_scale(8.0));
  const std::map<std::string, torch::Tensor> losses{{"a", torch::ones({})}, {"b", torch::full({2}, 2.0f)}};
  const auto [scaled, pair] = scaler.scale(std::tuple(losses, std::pair(torch::ones({1}), torch::Tensor())));
  EXPECT_EQ(scaled.at("a").item<float>(), 8.0f);
  EXPECT_TRUE(torch::equal(scaled.at("b"), torch::full({2}, 16.0f)));
  EXPECT_EQ(pair.first.item<float>(), 8.0f);
  EXPECT_FALSE(pair.second.defined());
  EXPECT_EQ(losses.at("a").item<float>(), 1.0f) << "what was given stays";
  static_assert(!CanScale<double> && !CanScale<std::string>, "they would come back as they are");
}

TEST(GradScalerTest, CountsTheIterationsThatWereSkipped) {
  auto weight = weights();
  auto sgd = sgd_for({weight});
  GradScaler scaler(GradScalerOptions().static_scale(true));
  EXPECT_EQ(scaler.get_skipped_steps(), 0);
  for (const float gradient : {1.0f, kInf, 1.0f, kNaN, kInf, 1.0f}) {
    sgd.zero_grad();
    backward(scaler, weight, {gradient, 1.0f});
    scaler.step(sgd);
    scaler.update();
  }
  EXPECT_EQ(scaler.get_skipped_steps(), 3);
}

TEST(GradScalerTest, MakesTheScaleAtTheFirstScaleCall) {
  GradScaler scaler(GradScalerOptions().init_scale(4.0));
  EXPECT_FALSE(scaler.scale_tensor().defined());
  EXPECT_EQ(scaler.get_scale(), 4.0);
  scaler.scale(at::TensorList{});
  EXPECT_FALSE(scaler.scale_tensor().defined());
  EXPECT_THROW(scaler.scale({torch::ones({}), torch::Tensor()}), c10::ValueError);
  EXPECT_FALSE(scaler.scale_tensor().defined()) << "a call that throws changes nothing";
  scaler.scale(torch::ones({}));
  EXPECT_EQ(scaler.scale_tensor().scalar_type(), torch::kFloat);
  EXPECT_EQ(scaler.scale_tensor().dim(), 0);
}

TEST(GradScalerTest, DrivesSeveralOptimizersEachInItsOwnStage) {
  auto good = weights();
  auto bad = weights();
  auto good_sgd = sgd_for({good});
  auto bad_sgd = sgd_for({bad});
  GradScaler scaler(GradScalerOptions().init_scale(8.0));
  backward(scaler, good, {1.0f, 1.0f});
  backward(scaler, bad, {1.0f, kInf});
  scaler.unscale_(good_sgd);

  EXPECT_FALSE(scaler.step(bad_sgd).stepped());
  EXPECT_TRUE(scaler.step(good_sgd).stepped()) << "one optimizer's overflow does not skip another's step";
  scaler.update();

  EXPECT_TRUE(torch::equal(good, torch::full({2}, 0.5)));
  EXPECT_TRUE(torch::equal(bad, torch::ones({2})));
  EXPECT_EQ(scaler.get_scale(), 4.0) << "but the scale is common";
}

TEST(GradScalerTest, PassesEverythingThroughWhenDisabled) {
  auto weight = weights();
  auto sgd = sgd_for({weight});
  GradScaler scaler(GradScalerOptions().enabled(false));
  const auto loss = (weight * torch::tensor({1.0f, kInf})).sum();
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  EXPECT_TRUE(scaler.scale({loss, weight})[1].is_same(weight));
  loss.backward();
  scaler.unscale_(sgd);
  scaler.unscale_(sgd);
  const auto result = scaler.step(sgd);
  EXPECT_TRUE(result.stepped());
  EXPECT_FALSE(result.found_inf().defined());
  EXPECT_EQ(weight[0].item<float>(), 0.5f);
  EXPECT_EQ(scaler.step(sgd, [&] { return torch::full({}, 7.0); }).loss().item<float>(), 7.0f);
  scaler.update();
  scaler.update(-1.0);
  EXPECT_EQ(scaler.get_scale(), 1.0);
  EXPECT_TRUE(scaler.state_dict().empty());
  scaler.load_state_dict({});
  EXPECT_FALSE(scaler.is_enabled());
}

TEST(GradScalerTest, ExplainsCallsInTheWrongOrder) {
  auto weight = weights();
  auto sgd = sgd_for({weight});
  GradScaler scaler;
  EXPECT_EQ(error_of([&] { scaler.unscale_(sgd); }),
            "GradScaler: unscale_() was called before scale(). Run backward on scaler.scale(loss) first.");
  EXPECT_EQ(error_of([&] { scaler.step(sgd); }),
            "GradScaler: step() was called before scale(). Run backward on scaler.scale(loss) first.");
  EXPECT_EQ(error_of([&] { scaler.update(); }),
            "GradScaler: update() was called before scale(). Run backward on scaler.scale(loss) first.");
  backward(scaler, weight, {1.0f, 1.0f});
  EXPECT_EQ(error_of([&] { scaler.update(); }),
            "GradScaler: update() was called, but no gradient was checked since the last update(). Call step() or "
            "unscale_() first, on an optimizer whose parameters have gradients.");
  scaler.unscale_(sgd);
  EXPECT_EQ(error_of([&] { scaler.unscale_(sgd); }),
            "GradScaler: unscale_() has already been called on torch::optim::SGD since the last update(). Call it once "
            "per step, after the last backward.");
  scaler.step(sgd);
  EXPECT_EQ(error_of([&] { scaler.unscale_(sgd); }),
            "GradScaler: unscale_() was called on torch::optim::SGD after step(). Call it before step(), and update() "
            "at the end of the iteration.");
  EXPECT_EQ(error_of([&] { scaler.step(sgd); }),
            "GradScaler: step() has already been called on torch::optim::SGD since the last update(). Call update() "
            "once per iteration, after the step() of every optimizer.");
  EXPECT_EQ(error_of<c10::ValueError>([&] { scaler.scale(torch::Tensor()); }),
            "GradScaler: scale() got an undefined tensor. Pass the loss, or model outputs.");
}

TEST(GradScalerDeviceTest, StepsAndSkipsOnCuda) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no CUDA device in this process";
  }
  auto weight = torch::ones({2}, torch::TensorOptions(torch::kCUDA).requires_grad(true));
  auto on_cpu = weights();
  auto sgd = sgd_for({weight, on_cpu});
  FusedSgd fused({weight}, 0.5);
  GradScaler scaler(GradScalerOptions().init_scale(8.0));
  for (const float gradient : {1.0f, kInf}) {
    sgd.zero_grad();
    const auto losses = scaler.scale(
        {(weight * torch::tensor({1.0f, 1.0f}, torch::kCUDA)).sum(), (on_cpu * torch::tensor({gradient, 1.0f})).sum()});
    losses[0].backward();
    losses[1].backward();
    EXPECT_TRUE(scaler.scale_tensor().is_cuda());
    EXPECT_EQ(scaler.step(sgd).stepped(), std::isfinite(gradient)) << "the overflow is on the CPU";
    scaler.update();
  }
  EXPECT_EQ(scaler.get_scale(), 4.0);
  EXPECT_TRUE(torch::equal(weight.cpu(), torch::full({2}, 0.5)));
  for (const float gradient : {1.0f, kNaN}) {
    weight.mutable_grad().reset();
    backward(scaler, weight, {gradient, 1.0f});
    EXPECT_EQ(scaler.step(fused).stepped(), std::isfinite(gradient));
    scaler.update(torch::full({}, std::isfinite(gradient) ? 0.0 : 2.0, torch::kCUDA));
    EXPECT_EQ(scaler.get_scale(), std::isfinite(gradient) ? std::numeric_limits<float>::min() : 2.0);
  }
  EXPECT_TRUE(torch::equal(weight.cpu(), torch::zeros({2})));

  GradScaler broken(GradScalerOptions().min_scale(1.0));
  broken.scale(torch::ones({}, torch::kCUDA));
  broken.update(torch::full({}, kNaN, torch::kCUDA));
  weight.mutable_grad() = torch::zeros_like(weight);
  EXPECT_FALSE(broken.step(sgd).stepped()) << "a scale that is NaN on the device is found there";
}

}  // namespace
}  // namespace mezzo
