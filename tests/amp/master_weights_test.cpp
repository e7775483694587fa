#include "mezzo/amp/master_weights.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <map>
#include <string>

#include "mezzo/optim/sgd.h"

namespace mezzo {
namespace {

TEST(MasterWeightsTest, KeepsUpdatesTooSmallForTheModelsDtype) {
  auto weight = at::ones({4}).requires_grad_();
  MasterWeights masters({{"weight", weight}}, at::kBFloat16);
  SGD sgd({{masters.masters()}}, SGDOptions().lr(1e-3));
  EXPECT_EQ(weight.scalar_type(), at::kBFloat16);
  for (int step = 0; step < 8; ++step) {  // each update is a quarter of bfloat16's spacing below 1, 2^-8
    weight.sum().backward();
    masters.accumulate_gradients();
    EXPECT_FALSE(weight.grad().defined());
    sgd.step();
    sgd.zero_grad();
    masters.copy_to_model();
  }
  EXPECT_NEAR(masters.masters()[0].tensor[0].item<float>(), 1 - 8e-3, 1e-6);
  EXPECT_TRUE(at::equal(weight, masters.masters()[0].tensor.to(at::kBFloat16)));
  EXPECT_LT(weight[0].item<float>(), 1);
}

TEST(MasterWeightsTest, SumsMicroBatchGradientsInFloat32) {
  auto weight = at::zeros({1}).requires_grad_();
  MasterWeights masters({{"weight", weight}}, at::kHalf);
  for (const double gradient : {2048.0, 1.0, 1.0}) {  // 2048 + 1 rounds to 2048 in float16
    (weight * gradient).sum().backward();
    masters.accumulate_gradients();
  }
  EXPECT_EQ(masters.masters()[0].tensor.grad().item<float>(), 2050);
}

TEST(MasterWeightsTest, RefusesOtherDtypesBeforeAnythingChanges) {
  auto weight = at::ones({1}).requires_grad_(), half = at::ones({1}, at::kHalf).requires_grad_();
  EXPECT_THROW(MasterWeights({{"weight", weight}}, at::kFloat), c10::ValueError);
  try {
    MasterWeights masters({{"weight", weight}, {"half", half}}, at::kHalf);
    FAIL() << "a half parameter has no float32 value to keep";
  } catch (const c10::ValueError& error) {
    EXPECT_NE(error.msg().find("parameter half is Half"), std::string::npos) << error.msg();
  }
  EXPECT_EQ(weight.scalar_type(), at::kFloat);
}

/// Which of a model's tensors are float32, once it has masters.
std::map<std::string, bool> float32_after(const torch::nn::Module& model, const MasterWeightsOptions& options = {}) {
  const MasterWeights masters(model, at::kBFloat16, options);
  std::map<std::string, bool> is_float32;
  for (const auto& item : model.named_parameters()) {
    is_float32[item.key()] = item.value().scalar_type() == at::kFloat;
  }
  return is_float32;
}

torch::nn::Sequential small_cnn() {
  torch::manual_seed(0);
  return torch::nn::Sequential(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3)), torch::nn::BatchNorm2d(4),
      torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 3, 3)),
      torch::nn::InstanceNorm2d(torch::nn::InstanceNorm2dOptions(3).affine(true).track_running_stats(true)));
}

TEST(MasterWeightsTest, TrainsAConvolutionalModelWithRunningStatistics) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    auto half = small_cnn(), full = small_cnn();
    MasterWeights masters(*half, dtype);
    SGD sgd(masters.masters(), SGDOptions().lr(0.1)), full_sgd(*full, SGDOptions().lr(0.1));
    for (int step = 0; step < 3; ++step) {
      const auto x = at::randn({4, 2, 8, 8});
      const auto output = half->forward(x.to(dtype));
      ASSERT_EQ(output.scalar_type(), dtype);
      output.to(at::kFloat).square().mean().backward();
      full->forward(x).square().mean().backward();
      for (auto* optimizer : {&sgd, &full_sgd}) {
        optimizer->step();
        optimizer->zero_grad();
      }
    }
    const auto buffers = half->named_buffers(), full_buffers = full->named_buffers();
    for (const auto& item : full_buffers) {
      EXPECT_EQ(buffers[item.key()].scalar_type(), item.value().scalar_type()) << item.key();
      // Statistics of activations that are rounded: to 2^-8 in bfloat16, of values of about 1.
      EXPECT_TRUE(at::allclose(buffers[item.key()], item.value(), 1e-2, 1e-2)) << item.key();
    }
    half->eval();
    EXPECT_EQ(half->forward(at::randn({1, 2, 8, 8}).to(dtype)).scalar_type(), dtype);
    masters.to_float32();
    EXPECT_EQ(half->forward(at::randn({1, 2, 8, 8})).scalar_type(), at::kFloat);
  }
}

TEST(MasterWeightsTest, KeepsStatisticsInFloat32AndOtherNormsIfAsked) {
  using Expected = std::map<std::string, bool>;
  EXPECT_EQ(float32_after(*small_cnn()), (Expected{{"0.weight", false},
                                                   {"0.bias", false},
                                                   {"1.weight", true},
                                                   {"1.bias", true},
                                                   {"2.weight", false},
                                                   {"2.bias", false},
                                                   {"3.weight", true},
                                                   {"3.bias", true}}));
  const auto make = [] {
    return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})),
                                 torch::nn::GroupNorm(torch::nn::GroupNormOptions(2, 4)),
                                 torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(4).track_running_stats(false)));
  };
  for (const bool keep : {false, true}) {
    EXPECT_EQ(float32_after(*make(), MasterWeightsOptions().keep_norms_fp32(keep)), (Expected{{"0.weight", false},
                                                                                              {"0.bias", false},
                                                                                              {"1.weight", keep},
                                                                                              {"1.bias", keep},
                                                                                              {"2.weight", keep},
                                                                                              {"2.bias", keep},
                                                                                              {"3.weight", keep},
                                                                                              {"3.bias", keep}}))
        << keep;
  }
}

TEST(MasterWeightsTest, RefusesAStateWhoseEntriesForOneParameterDifferInAnything) {
  auto weight = at::ones({2}).requires_grad_();
  MasterWeights masters({{"a", weight}, {"b", weight}}, at::kHalf);
  const auto values = at::full({2}, 3.0F);
  for (const auto& other : {at::full({2}, 4.0F), at::full({3}, 3.0F), values.to(at::kDouble)}) {
    try {
      masters.load_state_dict({{"a", values}, {"b", other}});
      FAIL() << other;
    } catch (const c10::ValueError& error) {
      EXPECT_NE(error.msg().find("entries a and b of the state to load differ"), std::string::npos) << error.msg();
    }
  }
  masters.load_state_dict({{"a", values}, {"b", values.clone()}});
  EXPECT_EQ(weight[0].item<float>(), 3);
}

}  // namespace
}  // namespace mezzo
