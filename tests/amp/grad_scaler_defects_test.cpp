#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "amp/grad_scaler_fixture.h"

namespace mezzo {
namespace {

// The defects of PyTorch 2.13 that mezzo does not have, by default.

TEST(GradScalerDefectTest, D1NeverLetsTheScaleReachZeroOrWriteNaNIntoParameters) {
  auto weight = weights();
  auto sgd = sgd_for({weight});
  GradScaler scaler(GradScalerOptions().init_scale(std::ldexp(1.0, -125)));
  for (int i = 0; i < 40; ++i) {
    sgd.zero_grad();
    backward(scaler, weight, {kInf, 1.0f});
    scaler.step(sgd);
    scaler.update();
  }
  EXPECT_EQ(scaler.get_scale(), std::ldexp(1.0, -126));
  sgd.zero_grad();
  backward(scaler, weight, {1.0f, 1.0f});
  EXPECT_TRUE(scaler.step(sgd).stepped());
  EXPECT_TRUE(torch::equal(weight, torch::full({2}, 0.5))) << weight;
  for (const double bad : {0.0, -2.0, double{kInf}, double{kNaN}}) {
    EXPECT_THAT(error_of<c10::ValueError>([&] { scaler.update(bad); }),
                testing::StartsWith("GradScaler: the new scale given to update() must be positive and finite in "));
    EXPECT_THROW(scaler.update(torch::tensor(bad)), c10::ValueError);
  }
}

TEST(GradScalerDefectTest, D1SkipsTheStepWhenTheScaleHasNoFiniteReciprocal) {
  auto weight = weights();
  auto sgd = sgd_for({weight});
  GradScaler scaler(GradScalerOptions().init_scale(1e-40).min_scale(0.0));
  backward(scaler, weight, {1.0f, 1.0f});
  EXPECT_FALSE(scaler.step(sgd).stepped());
  EXPECT_TRUE(torch::equal(weight, torch::ones({2}))) << weight;

  GradScaler pytorch(GradScalerOptions().init_scale(1e-40).reproduce_pytorch(true));
  weight.mutable_grad() = torch::zeros({2});
  pytorch.scale(torch::ones({}));
  EXPECT_TRUE(pytorch.step(sgd).stepped());
  EXPECT_TRUE(weight.isnan().all().item<bool>()) << "what the option stands for";
}

TEST(GradScalerDefectTest, D2FindsOverflowCausedByUnscaling) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kDouble}) {
    const double largest = dtype == torch::kDouble ? std::numeric_limits<double>::max() : 3e38;
    auto weight = torch::ones({2}, torch::TensorOptions(dtype).requires_grad(true));
    auto sgd = sgd_for({weight});
    GradScaler scaler(GradScalerOptions().init_scale(0.25));
    set_gradient(scaler, weight, torch::full({2}, largest, dtype));
    EXPECT_FALSE(scaler.step(sgd).stepped()) << dtype;
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 0.125);

    GradScaler pytorch(GradScalerOptions().init_scale(0.25).reproduce_pytorch(true));
    set_gradient(pytorch, weight, torch::full({2}, largest, dtype));
    EXPECT_TRUE(pytorch.step(sgd).stepped()) << dtype;
  }
}

TEST(GradScalerDefectTest, D2FindsHalfOverflowCausedByUnscaling) {
  auto half = torch::ones({2}, torch::TensorOptions(torch::kHalf).requires_grad(true));
  HalfSgd optimizer(half);
  GradScaler scaler(GradScalerOptions().init_scale(0.25));
  set_gradient(scaler, half, torch::full({2}, 60000.0, torch::kHalf));
  scaler.unscale_(optimizer);
  EXPECT_FALSE(scaler.step(optimizer).stepped());
}

TEST(GradScalerDefectTest, D3GrowsWhenTheIntervalFallsBelowTheCountOfGoodSteps) {
  for (const bool reproduce_pytorch : {false, true}) {
    auto weight = weights();
    auto sgd = sgd_for({weight});
    GradScaler scaler(GradScalerOptions().init_scale(8.0).reproduce_pytorch(reproduce_pytorch));
    const auto good_step = [&] {
      sgd.zero_grad();
      backward(scaler, weight, {1.0f, 1.0f});
      scaler.step(sgd);
      scaler.update();
    };
    for (int i = 0; i < 3; ++i) {
      good_step();
    }
    scaler.set_growth_interval(2);
    EXPECT_EQ(scaler.get_growth_tracker(), 3) << "the count is kept, should the interval be raised again";
    good_step();
    EXPECT_EQ(scaler.get_scale(), reproduce_pytorch ? 8.0 : 16.0);
    EXPECT_EQ(scaler.get_growth_tracker(), reproduce_pytorch ? 4 : 0);

    auto state = scaler.state_dict();
    state["_growth_tracker"] = 7;
    scaler.load_state_dict(state);
    good_step();
    EXPECT_EQ(scaler.get_scale(), reproduce_pytorch ? 8.0 : 32.0);
  }
}

TEST(GradScalerDefectTest, D4UnscalesTheGradientsOfClosures) {
  auto weight = weights();
  auto sgd = sgd_for({weight});
  GradScaler scaler;
  scaler.step(sgd, [&] {
    sgd.zero_grad();
    auto loss = weight.sum();
    scaler.scale(loss).backward();
    return loss;
  });
  EXPECT_TRUE(torch::equal(weight, torch::full({2}, 0.5))) << weight;
}

TEST(GradScalerDefectTest, D5LeavesTheStageReadyWhenNoParameterHasAGradient) {
  auto weight = weights();
  auto sgd = sgd_for({weight});
  GradScaler scaler;
  scaler.scale(torch::ones({}));
  EXPECT_THROW(scaler.step(sgd), c10::Error);
  backward(scaler, weight, {1.0f, 1.0f});
  scaler.unscale_(sgd);
  EXPECT_TRUE(torch::equal(weight.grad(), torch::ones({2}))) << weight.grad();
}

TEST(GradScalerDefectTest, D6TellsASkippedStepFromOneThatReturnsNothing) {
  auto weight = weights();
  auto sgd = sgd_for({weight});
  GradScaler scaler;
  backward(scaler, weight, {1.0f, 1.0f});
  const auto taken = scaler.step(sgd);
  scaler.update();
  sgd.zero_grad();
  backward(scaler, weight, {1.0f, kInf});
  const auto skipped = scaler.step(sgd);
  EXPECT_FALSE(taken.loss().defined());
  EXPECT_FALSE(skipped.loss().defined());
  EXPECT_TRUE(taken.stepped());
  EXPECT_FALSE(skipped.stepped());
}

TEST(GradScalerDefectTest, D7KeepsNaNAndInfOutOfOptimizersThatApplyTheScaleThemselves) {
  for (const bool reproduce_pytorch : {false, true}) {
    auto weight = weights();
    FusedSgd fused({weight, weights(0)}, 0.5);
    GradScaler tiny(GradScalerOptions().init_scale(1e-40).min_scale(0.0).reproduce_pytorch(reproduce_pytorch));
    set_gradient(tiny, weight, torch::ones({2}));
    EXPECT_EQ(tiny.step(fused).stepped(), reproduce_pytorch);
    EXPECT_EQ(torch::equal(weight, torch::ones({2})), !reproduce_pytorch) << weight;

    auto other = weights();
    auto empty = weights(0);
    empty.mutable_grad() = torch::ones({0});
    FusedSgd other_fused({other, empty}, 0.5);
    GradScaler low(GradScalerOptions().init_scale(0.25).reproduce_pytorch(reproduce_pytorch));
    set_gradient(low, other, torch::full({2}, std::numeric_limits<float>::max()));
    EXPECT_EQ(low.step(other_fused).stepped(), reproduce_pytorch);
    EXPECT_EQ(torch::equal(other, torch::ones({2})), !reproduce_pytorch) << other;
  }
}

}  // namespace
}  // namespace mezzo
