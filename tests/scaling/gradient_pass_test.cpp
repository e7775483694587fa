#include "scaling/gradient_pass.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <vector>

#include "kernels/device_scalars.h"
#include "kernels/grouped.h"
#include "not_finite.h"

namespace mezzo {
namespace {

at::Tensor with_gradient(const at::Tensor& gradient) {
  auto parameter = torch::zeros(gradient.sizes(), gradient.options()).requires_grad_();
  parameter.mutable_grad() = gradient.clone();
  return parameter;
}

GradientPass pass_over(const std::vector<at::Tensor>& parameters) {
  GradientPass pass;
  for (const at::Tensor& parameter : parameters) {
    pass.add(parameter);
  }
  return pass;
}

ScaleOfGradients scale_of(float value, bool reproduce_pytorch = false) {
  return {torch::full({}, value), /*may_be_below_one=*/value < 1, reproduce_pytorch};
}

TEST(GroupedTest, KeepsTheOrderOfAppearance) {
  const auto groups = grouped(std::vector{3, 1, 5, 2, 4, 7}, [](int number) { return number % 2; });
  EXPECT_EQ(groups, (std::vector<std::vector<int>>{{3, 1, 5, 7}, {2, 4}}));
}

/// In each dtype, at scales where unscaling makes gradients larger and smaller.
TEST(GradientPassTest, ChecksWhatUnscalingInPlaceComesTo) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    for (const float scale : {0.25f, 1.0f, 4.0f, 1e-40f}) {
      for (const float value : {1.0f, 50000.0f, 2e38f, kInf, -kInf, kNaN}) {
        const auto parameter = with_gradient(torch::tensor({0.0f, value, -1.0f}).to(dtype));
        const auto other = with_gradient(torch::ones({2}));
        auto pass = pass_over({other, parameter, with_gradient(torch::ones({0}, dtype))});
        const auto before = parameter.grad().clone();
        const float checked = pass.check(scale_of(scale), Unscaled::kInPlace).item<float>();
        EXPECT_TRUE(parameter.grad().equal(before) || std::isnan(value)) << "a check changes nothing";
        const float found = pass.unscale(scale_of(scale)).item<float>();
        const bool expected = scale == 1e-40f || !parameter.grad().isfinite().all().item<bool>();
        EXPECT_EQ(found, expected ? 1.0f : 0.0f) << dtype << ", scale " << scale << ", value " << value;
        EXPECT_EQ(checked, found) << dtype << ", scale " << scale << ", value " << value;
      }
    }
  }
}

TEST(GradientPassTest, ChecksGradientsThatAreToBeDividedInFloat32) {
  const auto half = with_gradient(torch::full({2}, 60000.0, torch::kHalf));
  EXPECT_EQ(pass_over({half}).check(scale_of(0.25f), Unscaled::kInFloat32).item<float>(), 0) << "float32 holds 240000";
  EXPECT_EQ(pass_over({half}).check(scale_of(0.25f), Unscaled::kInPlace).item<float>(), 1);
  const auto large = with_gradient(torch::full({2}, 3e38f));
  EXPECT_EQ(pass_over({large}).check(scale_of(0.25f), Unscaled::kInFloat32).item<float>(), 1);
  EXPECT_EQ(pass_over({large}).check(scale_of(0.25f, true), Unscaled::kInFloat32).item<float>(), 0) << "as PyTorch";
}

TEST(GradientPassTest, UnscalesIntoTheGradientOfAFloat32Master) {
  const auto half = with_gradient(torch::tensor({0x1p-20f, 2.0f}).to(torch::kHalf));
  const auto master = torch::zeros({2}).requires_grad_();
  GradientPass pass;
  pass.add(half, master);
  EXPECT_EQ(pass.unscale(scale_of(0x1p10f)).item<float>(), 0);
  EXPECT_FALSE(half.grad().defined());
  EXPECT_TRUE(torch::equal(master.grad(), torch::tensor({0x1p-30f, 0x1p-9f}))) << master.grad();
}

TEST(GradientPassTest, MeasuresAndChecksGradientsOfAnyDtypesAtOnce) {
  const std::vector<at::Tensor> parameters{with_gradient(torch::full({4}, 6.0, torch::kHalf)),
                                           with_gradient(torch::full({1}, 16.0f)),
                                           with_gradient(torch::full({1}, 12.0, torch::kDouble))};
  const auto found = pass_over(parameters).measure(torch::full({}, 2.0f), /*max_norm=*/1);
  EXPECT_FLOAT_EQ(found.norm.item<float>(), std::sqrt(4 * 9.0f + 64.0f + 36.0f));
  EXPECT_FLOAT_EQ(found.sum_of_squares.item<float>(), 4 * 9.0f + 64.0f + 36.0f);
  EXPECT_EQ(found.found_inf.item<float>(), 0);
  EXPECT_EQ(found.inv_scale.item<float>(), 0.5f);
  EXPECT_EQ(found.clip.item<float>(), clip_factor(found.norm, 1).item<float>());
  parameters[1].mutable_grad().fill_(kNaN);
  EXPECT_EQ(pass_over(parameters).measure({}, 1).found_inf.item<float>(), 1);
}

TEST(GradientPassTest, HasNoFoundInfAndNoNormWithoutGradients) {
  GradientPass none;
  EXPECT_TRUE(none.empty());
  EXPECT_FALSE(none.check(scale_of(1), Unscaled::kInPlace).defined());
  EXPECT_FALSE(none.unscale(scale_of(1)).defined());
  EXPECT_FALSE(none.measure({}, 1).norm.defined());
}

}  // namespace
}  // namespace mezzo
