#include "mezzo/optim/optimizer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "mezzo/amp/grad_scaler.h"
#include "mezzo/optim/adam.h"
#include "mezzo/optim/lamb.h"
#include "mezzo/optim/lr_scheduler.h"
#include "mezzo/optim/param_groups.h"
#include "mezzo/optim/sgd.h"
#include "optim/value_error.h"

namespace mezzo {
namespace {

TEST(OptimizerTest, TellsAutogradThatItChangedParametersAndHalfCopies) {
  auto weight = at::ones({3}).requires_grad_();
  auto half_copy = at::ones({3}, at::kHalf);
  SGD sgd({{"weight", weight, half_copy}}, SGDOptions().lr(0.5));
  weight.mutable_grad() = at::ones({3});
  const auto version = weight._version(), half_version = half_copy._version();
  sgd.step();
  EXPECT_GT(weight._version(), version);
  EXPECT_GT(half_copy._version(), half_version);
  EXPECT_TRUE(at::equal(half_copy, at::full({3}, 0.5, at::kHalf)));
}

TEST(OptimizerTest, TakesGradientsAndParametersOfAnyStrides) {
  const auto gradient = at::randn({4, 6});
  auto plain = at::ones({4, 6}).requires_grad_(), strided = at::ones({6, 4}).t().requires_grad_();
  AdamW adamw({{"plain", plain}, {"strided", strided}}, AdamWOptions().lr(0.1));
  plain.mutable_grad() = gradient.t().contiguous().t();
  strided.mutable_grad() = gradient;
  adamw.step();
  EXPECT_TRUE(at::allclose(plain, strided, 1e-6, 1e-7));
  EXPECT_FALSE(at::allclose(plain, at::ones({4, 6})));
}

/// Their strides differ from LibTorch's strides for such sizes.
TEST(OptimizerTest, UpdatesParametersOfOneRowThatLieByColumns) {
  at::manual_seed(5);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const auto values = at::randn({33}, dtype), gradient = at::randn({1, 33}, dtype);
    auto strided = values.clone().as_strided({1, 33}, {1, 1}).requires_grad_();
    auto dense = values.clone().view({1, 33}).requires_grad_();
    for (at::Tensor* const param : {&strided, &dense}) {
      param->mutable_grad() = gradient.clone();
      AdamW adam({{"weight", *param}});
      SGD momentum({{"weight", *param}}, SGDOptions().lr(0.1).momentum(0.9));
      adam.step(nullptr);
      momentum.step(nullptr);
    }
    EXPECT_TRUE(at::equal(strided, dense)) << dtype;
  }
}

TEST(OptimizerTest, StepsOnTheDeviceWithoutAWriteToItsGradients) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no CUDA device in this process";
  }
  auto weight = at::ones({5}, at::kCUDA).requires_grad_(), host = at::ones({5}).requires_grad_();
  AdamW adamw({{"weight", weight}, {"host", host}}, AdamWOptions().lr(0.1).max_grad_norm(1));
  GradScaler scaler(GradScalerOptions().init_scale(8));
  scaler.scale(at::ones({}, at::kCUDA));
  weight.mutable_grad() = at::full({5}, 8.0, at::kCUDA);
  host.mutable_grad() = at::full({5}, 8.0);
  EXPECT_TRUE(scaler.step(adamw).stepped());
  EXPECT_TRUE(at::allclose(weight.cpu(), host));
  EXPECT_EQ(weight.grad()[0].item<float>(), 8);
  EXPECT_NEAR(adamw.grad_norm().item<double>(), std::sqrt(10.0), 1e-6);
}

struct LinearAndNorm : torch::nn::Module {
  LinearAndNorm() {
    linear = register_module("linear", torch::nn::Linear(3, 2));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({2})));
    linear->bias.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& x) { return norm->forward(linear->forward(x)).square().sum(); }
  torch::nn::Linear linear{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

std::vector<std::string> names_of(const ParamGroup& group) {
  std::vector<std::string> names;
  for (const NamedParameter& parameter : group.params) {
    names.push_back(parameter.name);
  }
  return names;
}

TEST(OptimizerTest, TakesAModuleAndLeavesItsFrozenParametersOut) {
  LinearAndNorm net;
  const AdamW adamw(net);
  ASSERT_EQ(adamw.named_param_groups().size(), 1u);
  EXPECT_EQ(names_of(adamw.named_param_groups().front()),
            (std::vector<std::string>{"linear.weight", "norm.weight", "norm.bias"}));
  EXPECT_EQ(adamw.named_param_groups().front().weight_decay, 0.01) << "as torch.optim.AdamW";
  EXPECT_EQ(Adam(net).named_param_groups().front().weight_decay, 0) << "as torch.optim.Adam";
}

TEST(OptimizerTest, TakesParametersHoweverTheyAreWritten) {
  auto weight = at::ones({2}).requires_grad_();
  const std::vector<NamedParameter> params{{"weight", weight}};
  const std::vector<ParamGroup> groups{{params, 0.5}};
  for (const auto& optimizer : {std::make_shared<SGD>(params), std::make_shared<SGD>(groups),
                                std::make_shared<SGD>(ParamGroups{{"weight", weight}})}) {
    EXPECT_EQ(names_of(optimizer->named_param_groups().front()), std::vector<std::string>{"weight"});
  }
  EXPECT_EQ(SGD({{params, 0.25}}).named_param_groups().front().weight_decay, 0.25);
  EXPECT_EQ(SGD({{"weight", weight}}).named_param_groups().size(), 1u);
  const std::vector<NamedParameter> others{{"bias", at::ones({2}).requires_grad_()}};
  EXPECT_EQ(SGD({{params}}).named_param_groups().size(), 1u) << "groups, each of parameters alone";
  EXPECT_EQ(AdamW({{params}, {others}}).named_param_groups().size(), 2u);
  EXPECT_EQ(Adam({{params}}, AdamOptions().lr(0.5)).lr(), 0.5);
  EXPECT_EQ(LAMB({{params}, {others, 0.25}}).named_param_groups()[1].weight_decay, 0.25);
}

TEST(OptimizerTest, TakesGroupsWithoutDecayForBiasesAndNorms) {
  LinearAndNorm net;
  const AdamW adamw(no_decay_groups(net, 0.3));
  ASSERT_EQ(adamw.named_param_groups().size(), 2u);
  EXPECT_EQ(names_of(adamw.named_param_groups()[0]), std::vector<std::string>{"linear.weight"});
  EXPECT_EQ(adamw.named_param_groups()[0].weight_decay, 0.3);
  EXPECT_EQ(names_of(adamw.named_param_groups()[1]), (std::vector<std::string>{"norm.weight", "norm.bias"}));
  EXPECT_EQ(adamw.named_param_groups()[1].weight_decay, 0);
  EXPECT_EQ(AdamW(no_decay_groups(net), AdamWOptions().weight_decay(0.2)).named_param_groups()[0].weight_decay, 0.2)
      << "the optimizer's own, where none is given";
}

/// A custom norm, and other custom modules with parameters.
struct RMSNormImpl : torch::nn::Module {
  explicit RMSNormImpl(int64_t size) { weight = register_parameter("weight", at::ones({size})); }
  at::Tensor weight;
};
TORCH_MODULE(RMSNorm);
struct SpectralNormImpl : torch::nn::Module {
  SpectralNormImpl() {
    register_parameter("weight_orig", at::ones({4, 2, 3}));
    register_parameter("bias", at::ones({4}));
    register_buffer("u", at::ones({4}));
  }
};

struct PostNormBlock : torch::nn::Module {
  PostNormBlock() {
    gamma = register_parameter("gamma", at::ones({2}));
    after = register_module("after", RMSNorm(2));
    norm_head = register_module("norm_head", torch::nn::Linear(2, 2));
    norm = register_module("norm", std::make_shared<Scale>());
  }
  struct Scale : torch::nn::Module {
    Scale() { weight = register_parameter("weight", at::ones({2})); }
    at::Tensor weight;
  };
  at::Tensor gamma;
  RMSNorm after{nullptr};
  torch::nn::Linear norm_head{nullptr};
  std::shared_ptr<Scale> norm;
};

TEST(OptimizerTest, TellsNormsByTheTypesOfTheirModules) {
  using namespace torch::nn;
  const Sequential net(Conv1d(Conv1dOptions(2, 4, 3).bias(false)), BatchNorm1d(4), BatchNorm2d(4), BatchNorm3d(4),
                       InstanceNorm1d(InstanceNorm1dOptions(4).affine(true)),
                       InstanceNorm2d(InstanceNorm2dOptions(4).affine(true)),
                       InstanceNorm3d(InstanceNorm3dOptions(4).affine(true)), LayerNorm(LayerNormOptions({4, 5})),
                       GroupNorm(GroupNormOptions(2, 4)), Linear(LinearOptions(4, 2).bias(false)));
  const auto groups = no_decay_groups(*net);
  EXPECT_EQ(names_of(groups[0]), (std::vector<std::string>{"0.weight", "9.weight"}));
  EXPECT_EQ(groups[1].params.size(), 16u);
  // The same if the names alone go to make_param_groups.
  EXPECT_EQ(names_of(make_param_groups(named_parameters(*net), {})[0]), names_of(groups[0]));

  EXPECT_EQ(names_of(no_decay_groups(*LSTM(LSTMOptions(2, 3)))[0]),
            (std::vector<std::string>{"weight_ih_l0", "weight_hh_l0"}));

  std::vector<std::string> norms;
  for (const auto& parameter : named_parameters(PostNormBlock())) {
    if (is_norm_parameter(parameter)) {
      norms.push_back(parameter.name);
    }
  }
  EXPECT_EQ(norms, (std::vector<std::string>{"after.weight", "norm.weight"}))
      << "by type, and by name if that is unknown";
  EXPECT_TRUE(is_norm_parameter({"norm_head.bias", at::ones({2})})) << "by name, where there is no module";
  for (const auto& parameter : named_parameters(SpectralNormImpl())) {
    EXPECT_FALSE(is_norm_parameter(parameter)) << parameter.name;
  }
}

TEST(OptimizerTest, TrainsAGroupThatIsAddedLater) {
  auto first = at::ones({2}).requires_grad_(), second = at::ones({2}).requires_grad_();
  SGD sgd({{"first", first}}, SGDOptions().lr(0.5).weight_decay(0.1));
  const auto step = [&] {
    sgd.zero_grad();
    (first.sum() + second.sum()).backward();
    sgd.step();
    second.mutable_grad().reset();  // not the optimizer's at first
  };
  step();
  EXPECT_TRUE(at::equal(second, at::ones({2})));
  EXPECT_THROW(sgd.add_param_group({{{"third", first}}}), c10::ValueError) << "one tensor twice";
  EXPECT_THROW(sgd.add_param_group({{{"second", second}}, -0.1}), c10::ValueError);
  EXPECT_THROW(sgd.add_param_group({}), c10::ValueError);
  EXPECT_EQ(sgd.param_groups().size(), 1u);
  sgd.add_param_group({{{"second", second}}, /*weight_decay=*/std::nullopt, /*lr_scale=*/0.5});
  EXPECT_EQ(sgd.named_param_groups()[1].weight_decay, 0.1);
  step();
  EXPECT_TRUE(at::allclose(second, at::full({2}, 1 - 0.25 * 1.1))) << second;
}

/// Copies would share moments, and each step of one would be half a step of the other's.
TEST(OptimizerTest, IsNotCopied) {
  EXPECT_FALSE(std::is_copy_constructible_v<AdamW> || std::is_copy_assignable_v<AdamW>);
  EXPECT_FALSE(std::is_copy_constructible_v<SGD> || std::is_copy_assignable_v<SGD>);
  EXPECT_FALSE(std::is_copy_constructible_v<LRScheduler> || std::is_copy_assignable_v<LRScheduler>);
  EXPECT_TRUE(std::is_move_constructible_v<LRScheduler>);
}

TEST(OptimizerTest, RefusesNumbersThatArePastTheirRange) {
  auto weight = at::ones({2}).requires_grad_();
  const std::vector<NamedParameter> params{{"weight", weight}};
  const auto lr_scale_of = [](int group) {
    return testing::HasSubstr(c10::str("lr_scale of group ", group, " must be finite and not negative, got "));
  };
  const auto invalid = [](const std::string& what) { return testing::HasSubstr("Invalid " + what + ": "); };
  SGD sgd(params, SGDOptions().lr(0.4).momentum(0.5)), with_tensor(params, SGDOptions().lr(0.4));
  const auto lr = at::full({}, 0.4, at::kDouble);
  with_tensor.set_lr(lr);
  for (const double bad : {-0.1, std::nan(""), std::numeric_limits<double>::infinity()}) {
    SCOPED_TRACE(bad);
    EXPECT_THAT(value_error_of([&] { SGDOptions().lr(bad); }), invalid("learning rate"));
    EXPECT_THAT(value_error_of([&] { AdamWOptions{bad}; }), invalid("learning rate"));
    EXPECT_THAT(value_error_of([&] { AdamWOptions().set_lr(bad); }), invalid("learning rate"));
    EXPECT_THAT(value_error_of([&] { AdamWOptions().weight_decay(bad); }), invalid("weight_decay value"));
    EXPECT_THAT(value_error_of([&] { AdamOptions().eps(bad); }), invalid("epsilon value"));
    EXPECT_THAT(value_error_of([&] { LAMBOptions().eps(bad); }), invalid("epsilon value"));
    EXPECT_THAT(value_error_of([&] { SGDOptions().momentum(bad); }), invalid("momentum value"));
    EXPECT_THAT(value_error_of([&] { AdamOptions().betas({bad, 0.9}); }), invalid("beta parameter at index 0"));
    EXPECT_THAT(value_error_of([&] { LAMBOptions().betas({0.9, bad}); }), invalid("beta parameter at index 1"));
    EXPECT_THAT(value_error_of([&] { SGD({{params, bad}}); }),
                testing::HasSubstr("group 0: Invalid weight_decay value"));
    EXPECT_THAT(value_error_of([&] { SGD({{params, 0.0, bad}}); }), lr_scale_of(0));
    EXPECT_THAT(value_error_of([&] { sgd.set_lr(bad); }), invalid("learning rate"));
    EXPECT_THAT(value_error_of([&] { with_tensor.set_lr(bad); }), invalid("learning rate"));
    EXPECT_THAT(value_error_of([&] { sgd.add_param_group({{{"bias", at::ones({1}).requires_grad_()}}, 0.0, bad}); }),
                lr_scale_of(1));
    for (const auto& [option, what] :
         {std::pair("lr", "learning rate"), std::pair("weight_decay", "weight_decay value"),
          std::pair("momentum", "momentum value")}) {
      auto state = sgd.torch_state_dict();
      state.param_groups[0].options[option] = bad;
      EXPECT_THAT(value_error_of([&] { sgd.load_torch_state_dict(state); }),
                  testing::HasSubstr(c10::str("group 0 of the state to load: Invalid ", what)));
    }
    // Through LibTorch's classes, which check nothing: found by the next step.
    torch::optim::AdamWOptions of_torch(0.1);
    of_torch.eps(bad);
    EXPECT_THAT(value_error_of([&] { AdamW({weight}, of_torch); }), testing::HasSubstr("group 0: Invalid epsilon"));
    SGD written({weight}, SGDOptions(0.1));
    static_cast<torch::optim::SGDOptions&>(written.param_groups()[0].options()).lr(bad);
    EXPECT_THAT(value_error_of([&] { written.step(); }), testing::HasSubstr("group 0: Invalid learning rate"));
  }
  EXPECT_THAT(value_error_of([&] { SGDOptions().dampening(std::nan("")); }), invalid("dampening value"));
  EXPECT_THAT(value_error_of([&] { SGD(params, SGDOptions().max_grad_norm(std::nan(""))); }),
              testing::HasSubstr("max_grad_norm"));
  EXPECT_THAT(value_error_of([&] { SGD(params, SGDOptions().nesterov(true)); }),
              testing::HasSubstr("Nesterov momentum requires a momentum and zero dampening"));
  EXPECT_THAT(value_error_of([&] { SGD(params, SGDOptions().momentum(0.9).dampening(0.1).nesterov(true)); }),
              testing::HasSubstr("Nesterov momentum requires a momentum and zero dampening"));
  LAMB lamb(params);
  static_cast<torch::optim::AdamOptions&>(lamb.param_groups()[0].options()).amsgrad(true);
  EXPECT_THAT(value_error_of([&] { lamb.step(); }), testing::HasSubstr("LAMB has no amsgrad"));
  EXPECT_EQ(sgd.lr(), 0.4) << "nothing has changed";
  EXPECT_EQ(lr.item<double>(), 0.4);
  EXPECT_EQ(sgd.param_groups().size(), 1u);
  EXPECT_EQ(sgd.named_param_groups()[0].weight_decay, 0);
  EXPECT_EQ(std::get<double>(sgd.torch_state_dict().param_groups[0].options.at("momentum")), 0.5);
}

/// As LibTorch's optimizers do, which find their state by the parameter.
TEST(OptimizerTest, FollowsAModelToAnotherDtype) {
  const auto expect_to_follow = [](const auto& make) {
    torch::nn::Linear net(3, 2);
    auto optimizer = make(net->parameters());
    const auto train = [&](at::ScalarType dtype) {
      optimizer->zero_grad();
      net->forward(at::ones({4, 3}, dtype)).pow(2).sum().backward();
      optimizer->step();
    };
    train(at::kFloat);
    const auto slot = optimizer->state_dict().begin()->second.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    net->to(at::kDouble);
    for (const at::Tensor& parameter : net->parameters()) {
      parameter.mutable_grad() = at::zeros_like(parameter);
    }
    optimizer->set_lr(0);
    optimizer->step();
    const auto after = optimizer->state_dict().begin()->second;
    EXPECT_EQ(after.scalar_type(), at::kDouble);
    EXPECT_TRUE(at::allclose(after, slot * (after / slot).flatten()[0])) << "the moments of before, decayed";
    EXPECT_NE(after.abs().max().template item<double>(), 0);
    train(at::kDouble);
    net->to(at::kFloat);
    train(at::kFloat);
    EXPECT_EQ(optimizer->state_dict().begin()->second.scalar_type(), at::kFloat);
  };
  expect_to_follow([](const auto& parameters) { return std::make_unique<AdamW>(parameters); });
  expect_to_follow(
      [](const auto& parameters) { return std::make_unique<SGD>(parameters, SGDOptions(0.1).momentum(0.9)); });
}

/// Such parameters go by their numbers in a state.
TEST(OptimizerTest, TrainsModulesWhoseNamesAreTheSame) {
  const torch::nn::Linear encoder(2, 3), decoder(3, 2);
  auto parameters = named_parameters(*encoder);
  auto more = named_parameters(*decoder);
  SGD sgd({{parameters}, {more}}, SGDOptions().lr(1).momentum(0.5));
  decoder->weight.mutable_grad() = at::ones({2, 3});
  sgd.step();
  EXPECT_EQ(sgd.state_dict().size(), 1u);
  EXPECT_TRUE(sgd.state_dict().contains("momentum_buffer/2"));
  for (NamedParameter& parameter : more) {
    parameter.name = "decoder." + parameter.name;
  }
  SGD named({{parameters}, {more}}, SGDOptions().lr(1).momentum(0.5));
  named.step();
  EXPECT_TRUE(named.state_dict().contains("momentum_buffer/decoder.weight"));
  EXPECT_THAT(value_error_of([&] { SGD({{parameters}, {parameters}}); }),
              testing::HasSubstr("parameter weight is listed twice"));
}

TEST(OptimizerTest, RefusesParametersThatItCannotUpdate) {
  const auto train = [](const at::Tensor& tensor) { return value_error_of([&] { AdamW({{"filter", tensor}}); }); };
  const auto complex = at::ones({2}, at::kComplexFloat).requires_grad_();
  EXPECT_THAT(train(complex), testing::HasSubstr("parameter filter is ComplexFloat"));
  EXPECT_THAT(train(at::ones({2}, at::kDouble).requires_grad_()), "none");
}

/// Of finite gradients whose norm float32 cannot hold: PyTorch's clipping and step, which skip nothing.
TEST(OptimizerTest, ClipsFloat64GradientsWhoseNormIsPastFloat32) {
  const auto gradient = at::full({2}, 3e39, at::kDouble);
  auto theirs = at::ones({2}, at::kDouble).requires_grad_();
  torch::optim::SGD oracle({theirs}, torch::optim::SGDOptions(0.1));
  theirs.mutable_grad() = gradient.clone();
  const double norm = torch::nn::utils::clip_grad_norm_(theirs, 1.0);
  oracle.step();
  ASSERT_TRUE(std::isfinite(norm));
  const auto expect_their_step = [&](const auto& step, double scale) {
    auto mine = at::ones({2}, at::kDouble).requires_grad_(), beside = at::ones({3}).requires_grad_();
    SGD sgd({{"mine", mine}, {"beside", beside}}, SGDOptions().lr(0.1).max_grad_norm(1));
    mine.mutable_grad() = gradient * scale;
    beside.mutable_grad() = at::ones({3}) * scale;
    step(sgd);
    EXPECT_EQ(sgd.found_inf().item<double>(), 0);
    EXPECT_DOUBLE_EQ(sgd.grad_norm().item<double>(), norm);
    EXPECT_TRUE(at::allclose(mine, theirs, /*rtol=*/1e-14, /*atol=*/0)) << mine;
    EXPECT_TRUE(at::equal(beside, at::ones({3}))) << "float32 rounds so small a step away";
  };
  expect_their_step([](SGD& sgd) { sgd.step(); }, 1);
  GradScaler scaler(GradScalerOptions().init_scale(8));
  scaler.scale(at::ones({}));
  const auto by_scaler = [&](SGD& sgd) { EXPECT_TRUE(scaler.step(sgd).stepped()); };
  expect_their_step(by_scaler, 8);
  scaler.update();
  const auto after_unscaling = [&](SGD& sgd) {
    scaler.unscale_(sgd);
    by_scaler(sgd);
  };
  expect_their_step(after_unscaling, 8);
  scaler.update();

  auto weight = at::ones({2}, at::kDouble).requires_grad_();  // not clipped
  SGD plain({{"weight", weight}}, SGDOptions().lr(1e-40));
  weight.mutable_grad() = gradient * 8;
  EXPECT_TRUE(scaler.step(plain).stepped());
  EXPECT_TRUE(at::allclose(weight, 1 - gradient * 1e-40));
  weight.mutable_grad() = at::full({2}, std::numeric_limits<double>::infinity(), at::kDouble);
  scaler.update();
  EXPECT_FALSE(scaler.step(plain).stepped());
}

/// Runs steps whose learning rate changes, by a number or by a tensor.
template <class Optimizer, class Options>
std::vector<at::Tensor> train_with_lr(bool is_tensor, at::ScalarType dtype) {
  at::manual_seed(5);
  std::vector<at::Tensor> weights;
  for (const int64_t size : {1, 40, 1025}) {
    weights.push_back(at::randn({size}).to(dtype).requires_grad_());
  }
  Optimizer optimizer(
      {ParamGroup{{{"a", weights[0]}, {"b", weights[1]}}, 0.01}, ParamGroup{{{"c", weights[2]}}, 0.0, 0.3}},
      Options().lr(1));
  const auto lr = at::full({}, 1.0, at::kDouble);
  if (is_tensor) {
    optimizer.set_lr(lr);
  }
  for (const double rate : {0.1, 1.0 / 3, 0.0, 0.07}) {
    for (at::Tensor& weight : weights) {
      weight.mutable_grad() = at::randn(weight.sizes()).to(dtype);
    }
    is_tensor ? void(lr.fill_(rate)) : optimizer.set_lr(rate);
    optimizer.step();
    EXPECT_EQ(optimizer.lr(), rate);
    EXPECT_EQ(std::get<double>(optimizer.torch_state_dict().param_groups[1].options.at("lr")), rate * 0.3);
  }
  return weights;
}

TEST(OptimizerLrTest, IsReadOfATensorAtEachStepWithTheBitsOfANumber) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const auto expect_same_bits = [&](const auto& train) {
      const auto a = train(true, dtype), b = train(false, dtype);
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_TRUE(at::equal(a[i], b[i])) << i << " of " << dtype;
      }
    };
    expect_same_bits(train_with_lr<AdamW, AdamWOptions>);
    expect_same_bits(train_with_lr<Adam, AdamOptions>);
    expect_same_bits(train_with_lr<SGD, SGDOptions>);
    expect_same_bits(train_with_lr<LAMB, LAMBOptions>);
  }
}

TEST(OptimizerLrTest, IsSavedAsItsValueAndLoadedIntoTheTensor) {
  auto weight = at::ones({2}).requires_grad_();
  SGD sgd({{"weight", weight}}, SGDOptions().lr(0.4)), other({{"weight", weight}}, SGDOptions().lr(0.1));
  const auto lr = at::full({}, 0.25, at::kDouble), of_other = at::full({}, 0.1, at::kDouble);
  sgd.set_lr(lr);
  std::stringstream file;
  torch::save(sgd, file);
  other.set_lr(of_other);
  torch::load(other, file);
  EXPECT_EQ(of_other.item<double>(), 0.25);
  EXPECT_TRUE(other.lr_tensor().is_same(of_other));
}

TEST(OptimizerLrTest, RefusesTensorsThatAreNone) {
  auto weight = at::ones({2}).requires_grad_();
  SGD sgd({{"weight", weight}}, SGDOptions().lr(0.4));
  const auto refusal = [&](const at::Tensor& lr) -> std::string {
    try {
      sgd.set_lr(lr);
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "none";
  };
  const auto number = [](double value) { return at::full({}, value, at::kDouble); };
  EXPECT_THAT(refusal({}), testing::HasSubstr("got an undefined one"));
  EXPECT_THAT(refusal(at::full({}, 1.0F)), testing::HasSubstr("float64"));
  EXPECT_THAT(refusal(at::ones({1}, at::kDouble)), testing::HasSubstr("of sizes [1]"));
  EXPECT_THAT(refusal(number(1).requires_grad_()), testing::HasSubstr("require no gradient"));
  EXPECT_THAT(refusal(at::empty({}, at::TensorOptions(at::kMeta).dtype(at::kDouble))),
              testing::HasSubstr("is on meta, but no parameter is there; move it to cpu"));
  for (const auto& [key, device] : {std::pair(c10::DispatchKey::MPS, at::kMPS), {c10::DispatchKey::XPU, at::kXPU}}) {
    const auto there = at::detail::make_tensor<c10::TensorImpl>(c10::DispatchKeySet(key),
                                                                caffe2::TypeMeta::Make<float>(), at::Device(device));
    EXPECT_THAT(refusal(there), testing::HasSubstr(c10::str("a learning rate cannot be a tensor on ",
                                                            at::Device(device), ", which may have no float64")));
  }
  for (const double value : {-1.0, std::nan(""), static_cast<double>(INFINITY)}) {
    EXPECT_THAT(refusal(number(value)), testing::HasSubstr("must be finite and not negative"));
  }
  EXPECT_FALSE(sgd.lr_tensor().defined());
  EXPECT_EQ(sgd.lr(), 0.4);

  const auto lr = number(0.1);
  sgd.set_lr(lr);
  weight.mutable_grad() = at::ones({2});
  lr.fill_(-0.1);
  EXPECT_THROW(sgd.step(), c10::ValueError) << "it changed since";
  EXPECT_TRUE(at::equal(weight, at::ones({2})));
}

}  // namespace
}  // namespace mezzo
