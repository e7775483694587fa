#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "amp/grad_scaler_fixture.h"

namespace mezzo {
namespace {

TEST(GradScalerTest, RefusesHalfAndComplexGradientsNamingTheParameter) {
  auto weight = weights();
  auto half = torch::ones({3}, torch::TensorOptions(torch::kHalf).requires_grad(true));
  auto complex = torch::ones({1}, torch::TensorOptions(torch::kComplexFloat).requires_grad(true));
  torch::optim::SGD sgd({torch::optim::OptimizerParamGroup({weight}), torch::optim::OptimizerParamGroup({half})}, 0.5);
  GradScaler scaler(GradScalerOptions().init_scale(4.0));
  set_gradient(scaler, weight, torch::ones({2}));
  set_gradient(scaler, half, torch::ones({3}, torch::kHalf));
  EXPECT_EQ(error_of<c10::ValueError>([&] { scaler.step(sgd); }),
            "GradScaler: parameter 0 of group 1 of torch::optim::SGD has a float16 gradient of shape [3], too coarse "
            "to be unscaled in place. Keep parameters in float32 and run forward under autocast, or use one "
            "of mezzo's optimizers with MasterWeights.");
  EXPECT_TRUE(torch::equal(weight.grad(), torch::ones({2}))) << "nothing has changed";
  auto complex_sgd = sgd_for({complex});
  set_gradient(scaler, complex, torch::ones({1}, torch::kComplexFloat));
  EXPECT_EQ(error_of<c10::ValueError>([&] { scaler.unscale_(complex_sgd); }),
            "GradScaler: parameter 0 of group 0 of torch::optim::SGD has a gradient of dtype complex64 and shape "
            "[1]; only floating-point gradients can be unscaled. Give that parameter an optimizer that the scaler does "
            "not see.");
}

TEST(GradScalerTest, UnscalesHalfGradientsIntoTheGradientsOfFloat32Masters) {
  for (const bool unscale : {false, true}) {
    auto half = torch::zeros({2}, torch::TensorOptions(torch::kHalf).requires_grad(true)), master = weights();
    MasteredSgd optimizer(half, master, 1e4);
    GradScaler scaler;
    set_gradient(scaler, half, torch::tensor({1e-8f, -3e-9f}).mul(65536).to(torch::kHalf));
    if (unscale) {
      scaler.unscale_(optimizer);
      EXPECT_FALSE(half.grad().defined());
      EXPECT_TRUE(torch::allclose(master.grad(), torch::tensor({1e-8f, -3e-9f}), 0x1p-11, 0)) << master.grad();
    }
    EXPECT_TRUE(scaler.step(optimizer).stepped());
    EXPECT_TRUE(torch::allclose(master - 1, torch::tensor({-1e-4f, 3e-5f}), 0x1p-10, 1e-7)) << master;
  }
}

TEST(GradScalerTest, FindsOverflowOnTheWayToFloat32Masters) {
  auto half = torch::zeros({2}, torch::TensorOptions(torch::kHalf).requires_grad(true)), master = weights();
  MasteredSgd optimizer(half, master, 0.5);
  GradScaler scaler(GradScalerOptions().init_scale(0.25));
  set_gradient(scaler, half, torch::full({2}, kInf, torch::kHalf));
  scaler.unscale_(optimizer);
  EXPECT_FALSE(scaler.step(optimizer).stepped());
  scaler.update();
  master.mutable_grad().reset();
  set_gradient(scaler, half, torch::full({2}, 60000.0, torch::kHalf));
  scaler.unscale_(optimizer);
  EXPECT_EQ(master.grad()[0].item<float>(), 480000.0f) << "which float16 cannot hold";
  EXPECT_TRUE(scaler.step(optimizer).stepped());
}

TEST(GradScalerTest, UnscalesInPlaceTheHalfGradientsThatNothingIsUpdatedFrom) {
  auto half = torch::ones({2}, torch::TensorOptions(torch::kHalf).requires_grad(true));
  HalfSgd optimizer(half);
  GradScaler scaler;
  set_gradient(scaler, half, torch::full({2}, 8.0, torch::kHalf));
  scaler.unscale_(optimizer);
  EXPECT_TRUE(torch::equal(half.grad(), torch::full({2}, 0x1p-13, torch::kHalf)));
  EXPECT_TRUE(scaler.step(optimizer).stepped());
}

torch::Tensor sparse_gradient(const std::vector<float>& values, at::ScalarType dtype) {
  return torch::sparse_coo_tensor(torch::zeros({1, static_cast<int64_t>(values.size())}, torch::kLong),
                                  torch::tensor(values).to(dtype), {2});
}

TEST(GradScalerTest, ChecksAndUnscalesTheValuesOfSparseGradients) {
  auto weight = weights();
  auto sgd = sgd_for({weight});
  GradScaler scaler(GradScalerOptions().init_scale(4.0));
  set_gradient(scaler, weight, sparse_gradient({4.0f, 8.0f}, torch::kFloat));
  EXPECT_TRUE(scaler.step(sgd).stepped());
  EXPECT_TRUE(torch::equal(weight, torch::tensor({-0.5f, 1.0f}))) << weight;
  scaler.update();
  set_gradient(scaler, weight, sparse_gradient({4.0f, kInf}, torch::kFloat));
  EXPECT_FALSE(scaler.step(sgd).stepped());
}

TEST(GradScalerTest, CoalescesSparseHalfGradientsBeforeTheCheck) {
  auto half = torch::ones({2}, torch::TensorOptions(torch::kHalf).requires_grad(true));
  HalfSgd optimizer(half);
  GradScaler scaler(GradScalerOptions().init_scale(4.0));
  set_gradient(scaler, half, sparse_gradient({60000.0f, 60000.0f}, torch::kHalf));
  scaler.unscale_(optimizer);
  EXPECT_TRUE(half.grad().is_coalesced());
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 2.0) << "the sum of two entries of one index overflows";
}

/// GradScalerOptions with an all-reduce that throws while `fails`.
GradScalerOptions reducing_unless(const bool& fails) {
  return GradScalerOptions().found_inf_all_reduce(
      [&](torch::Tensor& /*flags*/) { TORCH_CHECK(!fails, "a rank is lost"); });
}

TEST(GradScalerTest, LeavesGradientsScaledAndTheOptimizerReadyWhenTheAllReduceThrows) {
  bool fails = true;
  for (const bool unscale : {true, false}) {
    auto weight = weights();
    auto sgd = sgd_for({weight});
    GradScaler scaler(reducing_unless(fails));
    backward(scaler, weight, {1.0f, -2.0f});
    for (int attempt = 0; attempt < 2; ++attempt) {
      fails = true;
      EXPECT_EQ(error_of([&] { unscale ? scaler.unscale_(sgd) : void(scaler.step(sgd)); }), "a rank is lost");
      EXPECT_TRUE(torch::equal(weight.grad(), torch::tensor({65536.0f, -131072.0f}))) << weight.grad();
    }
    fails = false;
    if (unscale) {
      scaler.unscale_(sgd);
      EXPECT_TRUE(torch::equal(weight.grad(), torch::tensor({1.0f, -2.0f}))) << weight.grad();
    }
    EXPECT_TRUE(scaler.step(sgd).stepped());
    scaler.update();
    EXPECT_TRUE(torch::equal(weight, torch::tensor({0.5f, 2.0f}))) << weight;
    EXPECT_EQ(scaler.get_growth_tracker(), 1);
  }
}

TEST(GradScalerTest, LeavesHalfGradientsWhereTheyAreWhenTheAllReduceThrows) {
  bool fails = true;
  auto half = torch::zeros({2}, torch::TensorOptions(torch::kHalf).requires_grad(true)), master = weights();
  MasteredSgd optimizer(half, master, 0.5);
  GradScaler scaler(reducing_unless(fails));
  set_gradient(scaler, half, torch::full({2}, 32768.0, torch::kHalf));
  EXPECT_EQ(error_of([&] { scaler.unscale_(optimizer); }), "a rank is lost");
  EXPECT_TRUE(torch::equal(half.grad(), torch::full({2}, 32768.0, torch::kHalf)));
  EXPECT_FALSE(master.grad().defined());
  fails = false;
  scaler.unscale_(optimizer);
  EXPECT_TRUE(torch::equal(master.grad(), torch::full({2}, 0.5)));
}

TEST(GradScalerTest, ReducesTheFoundInfThatUnscalingComesTo) {
  // 1 / scale times the largest bfloat16 is finite in float32. It is kept in bfloat16, and rounds
  // to inf there.
  for (const bool reduces : {false, true}) {
    const bool never = false;
    auto weight = torch::ones({2}, torch::TensorOptions(torch::kBFloat16).requires_grad(true));
    auto sgd = sgd_for({weight});
    GradScaler scaler((reduces ? reducing_unless(never) : GradScalerOptions()).init_scale(0.9975));
    set_gradient(scaler, weight, torch::full({2}, 3.3895e38, torch::kBFloat16));
    EXPECT_FALSE(scaler.step(sgd).stepped()) << reduces;
    EXPECT_TRUE(weight.grad().isinf().all().item<bool>());
  }
}

}  // namespace
}  // namespace mezzo
