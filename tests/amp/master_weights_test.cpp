#include "mezzo/amp/master_weights.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/modules/rnn.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <cmath>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "mezzo/amp/grad_scaler.h"
#include "mezzo/optim/adam.h"
#include "mezzo/optim/param_groups.h"
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

/// So that products of weights that lie side by side stay one product.
TEST(MasterWeightsTest, HalfCopiesShareMemoryAsTheirParametersDo) {
  const auto whole = at::randn({6, 5}), filters = at::randn({2, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast);
  auto first = whole.narrow(0, 0, 3).detach().requires_grad_(),
       second = whole.narrow(0, 3, 3).detach().requires_grad_();
  auto filter = filters.clone().requires_grad_();
  const MasterWeights masters({{"second", second}, {"filter", filter}, {"first", first}}, at::kHalf);
  EXPECT_TRUE(first.is_alias_of(second));
  EXPECT_EQ(second.storage_offset(), first.storage_offset() + first.numel());
  EXPECT_TRUE(at::equal(at::cat({first, second}), whole.to(at::kHalf)));
  EXPECT_EQ(filter.strides(), filters.strides());
  EXPECT_TRUE(at::equal(filter, filters.to(at::kHalf)));
  EXPECT_FALSE(first.is_view()) << "each has a version of its own";
}

TEST(MasterWeightsTest, HalfCopyOfASliceTakesTheMemoryOfTheSlice) {
  auto slice = at::zeros({1000, 8}).narrow(0, 10, 2).detach().requires_grad_();
  const MasterWeights masters({{"slice", slice}}, at::kHalf);
  EXPECT_EQ(slice.storage().nbytes(), 2 * 8 * sizeof(at::Half));
}

TEST(MasterWeightsTest, TakesExpandedParameters) {
  auto expanded = at::full({1}, 3.0f).expand({4}).detach().requires_grad_();
  MasterWeights masters({{"expanded", expanded}}, at::kHalf);
  masters.masters()[0].tensor.detach().fill_(2);
  masters.copy_to_model();
  EXPECT_TRUE(at::equal(expanded.detach(), at::full({4}, 2, at::kHalf)));
}

TEST(MasterWeightsTest, RefusesOtherDtypesBeforeAnythingChanges) {
  auto weight = at::ones({1}).requires_grad_(), half = at::ones({1}, at::kHalf).requires_grad_();
  EXPECT_THROW(MasterWeights({{"weight", weight}}, at::kFloat), c10::ValueError);
  try {
    MasterWeights masters({{"weight", weight}, {"half", half}}, at::kHalf);
    FAIL() << "a half parameter has no float32 value to keep";
  } catch (const c10::ValueError& error) {
    EXPECT_NE(error.msg().find("parameter half is float16"), std::string::npos) << error.msg();
  }
  EXPECT_EQ(weight.scalar_type(), at::kFloat);
}

TEST(MasterWeightsTest, RefusesOneNameForTwoParameters) {
  auto weight = at::ones({1}).requires_grad_(), other = at::ones({2}).requires_grad_();
  EXPECT_THROW(MasterWeights({{"a", weight}, {"b", weight}, {"b", other}}, at::kHalf), c10::ValueError);
  EXPECT_TRUE(weight.scalar_type() == at::kFloat && other.scalar_type() == at::kFloat);
  MasterWeights masters({{"a", weight}, {"b", weight}, {"a", weight}}, at::kHalf);
  masters.load_state_dict(masters.state_dict());
  EXPECT_EQ(masters.state_dict().size(), 2U);
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

/// A model, an input and what to tell from it.
struct SmallTask : torch::nn::Module {
  virtual at::Tensor forward(const at::Tensor& x) = 0;
  at::Tensor input, target;
};

struct ChannelsLastCnn : SmallTask {
  ChannelsLastCnn() {
    using namespace torch::nn;  // without biases, whose gradients before a BatchNorm are roundings of 0
    layers = register_module(
        "layers", Sequential(Conv2d(Conv2dOptions(3, 8, 3).padding(1).bias(false)), BatchNorm2d(8),
                             Conv2d(Conv2dOptions(8, 8, 3).bias(false)), BatchNorm2d(8), AdaptiveAvgPool2d(1)));
    head = register_module("head", Linear(8, 2));
    for (const auto& parameter : parameters()) {
      if (parameter.dim() == 4) {
        parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
      }
    }
    input = at::randn({16, 3, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast);
    target = input.mean(/*dim=*/{2, 3}).narrow(1, 0, 2) * 8;
  }
  at::Tensor forward(const at::Tensor& x) override { return head(layers->forward(x).flatten(1)); }

  torch::nn::Sequential layers{nullptr};
  torch::nn::Linear head{nullptr};
};

struct SmallLstm : SmallTask {
  SmallLstm() {
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(4, 12).num_layers(2).batch_first(true)));
    head = register_module("head", torch::nn::Linear(12, 1));
    input = at::randn({16, 6, 4});
    target = input.sum(/*dim=*/{1}).narrow(1, 0, 1);
  }
  at::Tensor forward(const at::Tensor& x) override { return head(std::get<0>(lstm(x)).select(1, -1)); }

  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear head{nullptr};
};

/// Losses of 12 steps; `dtype` Float trains without masters.
std::vector<double> curve_of(SmallTask& task, at::ScalarType dtype) {
  std::optional<MasterWeights> masters;
  if (dtype != at::kFloat) {
    masters.emplace(task, dtype);
  }
  AdamW adamw(masters ? masters->masters() : named_parameters(task), AdamWOptions().lr(0.02));
  GradScaler scaler(GradScalerOptions().init_scale(1024).enabled(dtype == at::kHalf));
  std::vector<double> losses;
  for (int step = 0; step < 12; ++step) {
    const auto output = task.forward(task.input.to(dtype));
    EXPECT_EQ(output.scalar_type(), dtype);
    const auto loss = (output.to(at::kFloat) - task.target).square().mean();
    scaler.scale(loss).backward();
    EXPECT_TRUE(scaler.step(adamw).stepped());
    scaler.update();
    adamw.zero_grad();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

template <class Task>
void expect_curve_of_float32(at::ScalarType dtype) {
  const auto make = [] {
    torch::manual_seed(7);
    return std::make_shared<Task>();
  };
  const auto full = make(), half = make();
  const auto before = full->named_buffers().size() > 0 ? full->buffers()[0].clone() : at::Tensor();
  const auto expected = curve_of(*full, at::kFloat), losses = curve_of(*half, dtype);
  EXPECT_LT(expected.back(), 0.6 * expected.front());
  for (size_t i = 0; i < losses.size(); ++i) {
    // Weights and activations are rounded to 2^-9 in bfloat16 and 2^-12 in float16; each passes some ten roundings.
    EXPECT_NEAR(losses[i], expected[i], (dtype == at::kHalf ? 0.01 : 0.06) * expected.front()) << i;
  }
  half->eval();
  const at::Tensor output = half->forward(half->input.to(dtype));
  EXPECT_TRUE(output.isfinite().all().item<bool>());
  if (before.defined()) {
    const auto statistics = half->buffers()[0];
    EXPECT_EQ(statistics.scalar_type(), at::kFloat);
    EXPECT_FALSE(at::equal(statistics, before));
    EXPECT_TRUE(at::allclose(statistics, full->buffers()[0], 0.05, 0.02)) << statistics << full->buffers()[0];
    EXPECT_TRUE(half->parameters()[0].is_contiguous(at::MemoryFormat::ChannelsLast));
  }
}

TEST(MasterWeightsTest, TrainsConvolutionsInChannelsLastAndLstmsAsFloat32Does) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    expect_curve_of_float32<ChannelsLastCnn>(dtype);
    expect_curve_of_float32<SmallLstm>(dtype);
  }
}

TEST(MasterWeightsTest, TakesNormsOfAListOfParametersByTheirModules) {
  auto model = small_cnn();
  const MasterWeights masters(named_parameters(*model), at::kHalf);
  EXPECT_EQ(model->named_parameters()["1.weight"].scalar_type(), at::kFloat);
  EXPECT_EQ(model->named_parameters()["0.weight"].scalar_type(), at::kHalf);
}

TEST(MasterWeightsTest, SavesAndLoadsByTorch) {
  auto saved = small_cnn(), loaded = small_cnn();
  MasterWeights masters(*saved, at::kHalf);
  at::Tensor(masters.masters()[0].tensor.detach()).add_(1e-5);  // which no half weight could hold
  std::stringstream stream;
  torch::save(masters, stream);
  MasterWeights others(*loaded, at::kHalf);
  torch::load(others, stream);
  for (const auto& [name, tensor] : others.state_dict()) {
    EXPECT_TRUE(at::equal(tensor, masters.state_dict().at(name))) << name;
  }
  EXPECT_TRUE(at::equal(loaded->parameters()[0], masters.masters()[0].tensor.to(at::kHalf)));

  std::stringstream foreign;
  torch::save(at::ones({2}), foreign);
  EXPECT_THROW(torch::load(others, foreign), c10::ValueError);
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
