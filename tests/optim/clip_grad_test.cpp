#include "mezzo/optim/clip_grad.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace mezzo {
namespace {

torch::Tensor parameter_with(const torch::Tensor& gradient) {
  auto parameter = torch::zeros_like(gradient).requires_grad_();
  parameter.mutable_grad() = gradient.clone();
  return parameter;
}

TEST(ClipGradNormTest, ScalesGradientsDownToMaxNorm) {
  const std::vector<torch::Tensor> parameters = {parameter_with(torch::tensor({3.0f})), torch::ones({2}),
                                                 parameter_with(torch::tensor({{4.0f}}))};
  EXPECT_EQ(clip_grad_norm_(parameters, 10.0).item<float>(), 5.0f);
  EXPECT_EQ(parameters[0].grad().item<float>(), 3.0f) << "small enough already";
  EXPECT_EQ(clip_grad_norm_(parameters, 1.0).item<float>(), 5.0f);
  EXPECT_NEAR(parameters[0].grad().item<float>(), 0.6f, 1e-6);
  EXPECT_NEAR(parameters[2].grad().item<float>(), 0.8f, 1e-6);
  EXPECT_FALSE(parameters[1].grad().defined());
}

TEST(ClipGradNormTest, AgreesWithLibTorchsSynchronizingFunction) {
  torch::manual_seed(0);
  std::vector<torch::Tensor> ours;
  std::vector<torch::Tensor> theirs;
  for (int i = 0; i < 5; ++i) {
    const auto gradient = torch::randn({7, 11});
    ours.push_back(parameter_with(gradient));
    theirs.push_back(parameter_with(gradient));
  }
  const auto norm = clip_grad_norm_(ours, 0.5);
  EXPECT_FLOAT_EQ(norm.item<float>(), static_cast<float>(torch::nn::utils::clip_grad_norm_(theirs, 0.5)));
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(torch::allclose(ours[i].grad(), theirs[i].grad(), /*rtol=*/1e-6, /*atol=*/0));
  }
}

TEST(ClipGradNormTest, AccumulatesHalfGradientsInFloat32) {
  const auto parameter = parameter_with(torch::full({1000}, 60000.0, torch::kHalf));
  const auto norm = clip_grad_norm_(parameter, 1.0);
  EXPECT_EQ(norm.scalar_type(), torch::kFloat);
  EXPECT_NEAR(norm.item<double>(), 60000.0 * std::sqrt(1000.0), 32.0) << "half ends at 65504";  // 16 ulp of float32
  EXPECT_EQ(parameter.grad().scalar_type(), torch::kHalf);
  EXPECT_NEAR(parameter.grad()[0].item<double>(), 0.0316, 1e-4);
}

TEST(ClipGradNormTest, MixesDtypesAndKeepsFloat64) {
  const std::vector<torch::Tensor> parameters = {parameter_with(torch::full({1}, 3.0, torch::kBFloat16)),
                                                 parameter_with(torch::full({1}, 4.0, torch::kDouble))};
  const auto norm = clip_grad_norm_(parameters, std::numeric_limits<double>::infinity());
  EXPECT_EQ(norm.scalar_type(), torch::kDouble);
  EXPECT_EQ(norm.item<double>(), 5.0);
  EXPECT_EQ(parameters[1].grad().item<double>(), 4.0);
}

TEST(ClipGradNormTest, GivesZeroWithoutGradients) {
  EXPECT_EQ(clip_grad_norm_({}, 1.0).item<float>(), 0.0f);
  EXPECT_EQ(clip_grad_norm_(torch::ones({2}), 1.0).item<float>(), 0.0f);
}

TEST(ClipGradNormTest, ExplainsMisuseBeforeAnythingChanges) {
  const auto message = [](const std::vector<torch::Tensor>& parameters, double max_norm) -> std::string {
    try {
      clip_grad_norm_(parameters, max_norm);
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "nothing thrown";
  };
  EXPECT_EQ(message({}, -1.0), "clip_grad_norm_: max_norm must be at least 0, got -1.");
  EXPECT_EQ(message({}, std::nan("")), "clip_grad_norm_: max_norm must be at least 0, got nan.");
  const auto dense = parameter_with(torch::full({1}, 3.0));
  auto sparse = torch::ones({2}, torch::requires_grad());
  sparse.mutable_grad() = torch::ones({2}).to_sparse();
  EXPECT_EQ(message({dense, sparse}, 1.0),
            "clip_grad_norm_: parameter 1 has a gradient of layout Sparse; only dense gradients can be clipped. Leave "
            "that parameter out.");
  EXPECT_EQ(dense.grad().item<float>(), 3.0f);
}

TEST(ClipGradNormTest, ThrowsForANormThatIsNotFiniteIfAsked) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const std::vector<torch::Tensor> parameters = {parameter_with(torch::tensor({3.0f})),
                                                   parameter_with(torch::tensor({bad}))};
    try {
      clip_grad_norm_(parameters, 1.0, 2.0, /*error_if_nonfinite=*/true);
      ADD_FAILURE() << "nothing thrown";
    } catch (const c10::Error& error) {
      EXPECT_EQ(std::string(error.what_without_backtrace()),
                std::string("clip_grad_norm_: the total norm is ") + (bad > 0 ? "inf" : "nan") +
                    ". Find the gradient that is not finite, or pass error_if_nonfinite=false.");
    }
    EXPECT_EQ(parameters[0].grad().item<float>(), 3.0f) << "unchanged";
    EXPECT_THROW(get_total_norm(parameters[1].grad(), 2.0, /*error_if_nonfinite=*/true), c10::Error);
    EXPECT_FALSE(std::isfinite(clip_grad_norm_(parameters, 1.0).item<float>()));
  }
  EXPECT_EQ(clip_grad_norm_(parameter_with(torch::tensor({3.0f})), 1.0, 2.0, true).item<float>(), 3.0f);
}

TEST(GetTotalNormTest, TakesTensorsOfAnyKind) {
  const std::vector<torch::Tensor> tensors = {torch::full({1}, 3.0, torch::kBFloat16), torch::tensor({{-4.0f}}),
                                              torch::empty({0})};
  EXPECT_EQ(get_total_norm(tensors).item<float>(), 5.0f);
  EXPECT_EQ(get_total_norm(tensors, 1.0).item<float>(), 7.0f);
  EXPECT_EQ(get_total_norm(tensors, std::numeric_limits<double>::infinity()).item<float>(), 4.0f);
  EXPECT_EQ(get_total_norm({}).item<float>(), 0.0f);
  EXPECT_THROW(get_total_norm(tensors, 0), c10::ValueError);
  EXPECT_THROW(get_total_norm(torch::ones({2}).to_sparse()), c10::ValueError);
}

TEST(ClipGradNormTest, LeavesTheNormOnTheDevice) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no CUDA device in this process";
  }
  const std::vector<torch::Tensor> parameters = {parameter_with(torch::full({1}, 3.0, torch::kCUDA)),
                                                 parameter_with(torch::full({1}, 4.0))};
  const auto norm = clip_grad_norm_(parameters, 1.0);
  EXPECT_TRUE(norm.is_cuda());
  EXPECT_EQ(norm.item<float>(), 5.0f);
  EXPECT_NEAR(parameters[1].grad().item<float>(), 0.8f, 1e-6);
}

}  // namespace
}  // namespace mezzo
