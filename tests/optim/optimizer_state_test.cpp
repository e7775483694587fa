// States and archives of mezzo's optimizers.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "mezzo/amp/grad_scaler.h"
#include "mezzo/optim/adam.h"
#include "mezzo/optim/lamb.h"
#include "mezzo/optim/sgd.h"
#include "optim/value_error.h"

namespace mezzo {
namespace {

/// Trains, saves, and lets another optimizer of the same kind go on.
template <class MakeOptimizer>
void expect_to_go_on(const MakeOptimizer& make) {
  auto weight = at::linspace(-1, 1, 8).requires_grad_(), bias = at::ones({3}).requires_grad_();
  const auto train = [&](Optimizer& optimizer, int steps) {
    for (int i = 0; i < steps; ++i) {
      optimizer.zero_grad();
      (weight.pow(2).sum() * bias.pow(3).sum()).backward();
      optimizer.step();
    }
  };
  auto whole = make(weight, bias);
  train(*whole, 3);
  whole->set_lr(0.02);
  std::stringstream file;
  torch::save(*whole, file);
  const auto weight_then = weight.detach().clone(), bias_then = bias.detach().clone();
  train(*whole, 3);
  const auto weight_after = weight.detach().clone(), bias_after = bias.detach().clone();
  {
    const at::NoGradGuard no_grad;
    weight.copy_(weight_then);
    bias.copy_(bias_then);
  }
  auto resumed = make(weight, bias);
  torch::load(*resumed, file);
  EXPECT_EQ(resumed->lr(), 0.02);
  train(*resumed, 3);
  EXPECT_TRUE(at::equal(weight, weight_after)) << detail::name_of(*resumed);
  EXPECT_TRUE(at::equal(bias, bias_after)) << detail::name_of(*resumed);
}

TEST(OptimizerStateTest, GoesOnToTheBitFromAnArchive) {
  const auto groups = [](const at::Tensor& weight, const at::Tensor& bias) {
    return std::vector<ParamGroup>{{{{"weight", weight}}, 0.1}, {{{"a.bias", bias}}, 0.0, 0.5}};
  };
  expect_to_go_on([&](const auto& w, const auto& b) { return std::make_unique<AdamW>(groups(w, b)); });
  expect_to_go_on([&](const auto& w, const auto& b) {
    return std::make_unique<Adam>(groups(w, b), AdamOptions().amsgrad(true).betas({0.8, 0.9}));
  });
  expect_to_go_on([&](const auto& w, const auto& b) {
    return std::make_unique<SGD>(groups(w, b), SGDOptions().momentum(0.9).nesterov(true));
  });
  expect_to_go_on([&](const auto& w, const auto& b) { return std::make_unique<LAMB>(groups(w, b)); });
}

TEST(OptimizerStateTest, RefusesAnArchiveThatIsNotItsOwn) {
  auto weight = at::ones({2}).requires_grad_();
  std::stringstream of_tensor, of_sgd;
  torch::save(at::ones({2}), of_tensor);
  torch::save(SGD({{"weight", weight}}), of_sgd);
  AdamW adamw({{"weight", weight}});
  EXPECT_THROW(torch::load(adamw, of_tensor), c10::ValueError);
  EXPECT_THROW(torch::load(adamw, of_sgd), c10::ValueError) << "an SGD's has no moments to take over";
  Adam adam({{"weight", weight}}, AdamOptions().lr(0.5));
  std::stringstream of_adamw;
  torch::save(adamw, of_adamw);
  EXPECT_THAT(value_error_of([&] { torch::load(adam, of_adamw); }),
              testing::HasSubstr("mezzo::Adam: the archive to load is of mezzo::AdamW"));
  EXPECT_EQ(adam.lr(), 0.5) << "nothing has changed";
  auto bias = at::ones({3}).requires_grad_();
  AdamW of_other({{"bias", bias}});
  weight.mutable_grad() = at::ones({2});
  adamw.step();
  std::stringstream of_weight;
  torch::save(adamw, of_weight);
  EXPECT_THAT(value_error_of([&] { torch::load(of_other, of_weight); }),
              testing::HasSubstr("state entry exp_avg/bias is [2], expected [3]"));
  EXPECT_TRUE(of_other.state_dict().empty());
}

/// As a recorded step needs, which goes on with the addresses that it was recorded with.
TEST(OptimizerStateTest, LoadsAStateIntoTheMemoryThatItHas) {
  auto weight = at::ones({2}).requires_grad_(), bias = at::ones({3}).requires_grad_();
  AdamW adamw({{"weight", weight}, {"bias", bias}});
  (weight.sum() + bias.sum()).backward();
  adamw.step();
  const auto before = adamw.state_dict();
  std::map<std::string, at::Tensor> state;
  for (const char* slot : {"step/", "exp_avg/", "exp_avg_sq/"}) {
    const auto key = std::string(slot) + "weight";
    state[key] = at::full(before.at(key).sizes(), 3, at::kDouble).requires_grad_();
  }
  adamw.load_state_dict(state);
  const auto after = adamw.state_dict();
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [key, tensor] : after) {
    EXPECT_EQ(tensor.data_ptr(), before.at(key).data_ptr()) << key;
    EXPECT_TRUE(at::equal(tensor, at::full_like(tensor, key.ends_with("weight") ? 3 : 0))) << key << tensor;
    EXPECT_FALSE(tensor.requires_grad());
  }

  weight.set_data(at::ones({4}));  // whose moments are of another size
  adamw.load_state_dict(
      {{"step/weight", at::ones({})}, {"exp_avg/weight", at::ones({4})}, {"exp_avg_sq/weight", at::ones({4})}});
  EXPECT_TRUE(at::equal(adamw.state_dict().at("exp_avg/weight"), at::ones({4})));
}

TEST(OptimizerStateTest, LoadsItsOwnTensorsUnderOtherNames) {
  auto a = at::ones({2}).requires_grad_(), b = at::ones({2}).requires_grad_();
  SGD sgd({{"a", a}, {"b", b}}, SGDOptions().lr(0.1).momentum(0.5));
  (a.sum() + 2 * b.sum()).backward();
  sgd.step();
  auto state = sgd.state_dict();
  std::swap(state.at("momentum_buffer/a"), state.at("momentum_buffer/b"));
  sgd.load_state_dict(state);
  EXPECT_TRUE(at::equal(sgd.state_dict().at("momentum_buffer/a"), at::full({2}, 2.0)));
  EXPECT_TRUE(at::equal(sgd.state_dict().at("momentum_buffer/b"), at::full({2}, 1.0)));
}

TEST(OptimizerStateTest, LoadsAStateWhoseGroupDoesNotLearn) {
  for (const auto& scales : {std::vector{0.0, 0.5}, std::vector{0.5, 0.0}, std::vector{0.0, 0.0}}) {
    auto first = at::ones({2}).requires_grad_(), second = at::ones({2}).requires_grad_();
    const std::vector<ParamGroup> groups{{{{"first", first}}, 0.1, scales[0]}, {{{"second", second}}, 0.1, scales[1]}};
    AdamW saved(groups, AdamWOptions().lr(0.2)), loaded(groups, AdamWOptions().lr(0.4));
    (first.sum() + second.sum()).backward();
    saved.step();
    std::stringstream file;
    torch::save(saved, file);
    torch::load(loaded, file);
    EXPECT_TRUE(at::equal(loaded.state_dict().at("exp_avg/first"), saved.state_dict().at("exp_avg/first")));
    const bool is_known = scales[0] + scales[1] > 0;
    EXPECT_DOUBLE_EQ(loaded.lr(), is_known ? 0.2 : 0.4) << "no group tells of it";
  }
}

/// As two groups of torch.optim may have.
TEST(OptimizerStateTest, LoadsLearningRatesInAnyRatio) {
  auto first = at::ones({2}).requires_grad_(), second = at::ones({2}).requires_grad_();
  AdamW adamw(std::vector<ParamGroup>{{{{"first", first}}}, {{{"second", second}}}}, AdamWOptions(0.1));
  auto state = adamw.torch_state_dict();
  state.param_groups[0].options["lr"] = 0.3;
  state.param_groups[1].options["lr"] = 0.7;
  state.param_groups[1].options["betas"] = std::tuple(0.5, 0.6);
  adamw.load_torch_state_dict(state);
  EXPECT_EQ(adamw.param_groups()[0].options().get_lr(), 0.3);
  EXPECT_EQ(adamw.param_groups()[1].options().get_lr(), 0.7);
  const auto& options = static_cast<const torch::optim::AdamWOptions&>(adamw.param_groups()[1].options());
  EXPECT_EQ(options.betas(), std::tuple(0.5, 0.6));
  adamw.set_lr(0.2);
  EXPECT_EQ(adamw.param_groups()[1].options().get_lr(), 0.2);
}

/// Rounding at random depends on the number of steps, which torch::optim::SGDParamState has not.
TEST(OptimizerStateTest, SavesTheStepsThatSeedStochasticRounding) {
  const auto make = [](const at::Tensor& weight, double momentum) {
    return SGD({weight}, SGDOptions(1e-3).momentum(momentum).stochastic_rounding_seed(7));
  };
  for (const double momentum : {0.0, 0.9}) {
    auto weight = at::ones({64}, at::kBFloat16).requires_grad_();
    auto sgd = make(weight, momentum);
    const auto step = [&](SGD& optimizer) {
      weight.mutable_grad() = at::full({64}, 0.3, at::kBFloat16);
      optimizer.step();
    };
    step(sgd);
    step(sgd);
    std::stringstream file;
    torch::save(sgd, file);
    const auto then = weight.detach().clone();
    step(sgd);
    const auto expected = weight.detach().clone();
    weight.detach().copy_(then);
    auto resumed = make(weight, momentum);
    torch::load(resumed, file);
    step(resumed);
    EXPECT_TRUE(at::equal(weight, expected)) << momentum;
  }
}

/// Also of a group that LibTorch's base class added, which no step has seen.
TEST(OptimizerStateTest, SavesAndLoadsTheStepsOfAGroupAddedThroughTheBaseClass) {
  const auto options = SGDOptions(1e-3).momentum(0.9).stochastic_rounding_seed(7);
  const auto make = [] { return at::ones({64}, at::kBFloat16).requires_grad_(); };
  const std::vector<torch::optim::OptimizerParamGroup> groups{{{make()}}, {{make()}}};
  SGD trained(groups, options);
  for (const auto& group : groups) {
    group.params().front().mutable_grad() = at::ones({64}, at::kBFloat16);
  }
  trained.step();
  trained.step();
  const auto with_group_of_base = [&] {
    auto sgd = std::make_unique<SGD>(groups[0].params(), options);
    static_cast<torch::optim::Optimizer&>(*sgd).add_param_group(groups[1]);
    return sgd;
  };
  auto first = with_group_of_base(), second = with_group_of_base();
  first->load_state_dict(trained.state_dict());
  std::stringstream file;
  torch::save(*first, file);
  torch::load(*second, file);
  EXPECT_EQ(first->state_dict().at("step/1").item<double>(), 2);
  EXPECT_EQ(second->state_dict().at("step/0").item<double>(), 2);
  EXPECT_EQ(second->state_dict().at("step/1").item<double>(), 2);
}

/// The first gradient is not dampened, and a skipped step has none.
TEST(OptimizerStateTest, DampensFromTheSecondStepAlsoAfterASkipAndAnArchive) {
  const auto step = [](torch::optim::Optimizer& sgd, at::Tensor& weight, float gradient) {
    weight.mutable_grad() = at::full({4}, gradient);
    sgd.step();
  };
  const auto torch_options = torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.5);
  const auto options = SGDOptions(torch_options).max_grad_norm(100);
  auto expected = at::ones({4}).requires_grad_(), weight = at::ones({4}).requires_grad_();
  torch::optim::SGD oracle({expected}, torch_options);
  SGD skipped({weight}, options);
  step(skipped, weight, std::numeric_limits<float>::infinity());
  EXPECT_TRUE(at::equal(weight, at::ones({4}))) << "skipped";
  std::stringstream file;
  torch::save(skipped, file);
  std::stringstream copy(file.str());
  auto resumed_weight = at::ones({4}).requires_grad_(), torch_weight = at::ones({4}).requires_grad_();
  SGD resumed({resumed_weight}, options);
  torch::load(resumed, file);
  torch::optim::SGD of_torch({torch_weight}, torch_options);
  torch::load(of_torch, copy);
  for (const float gradient : {1.0F, 2.0F}) {
    step(oracle, expected, gradient);
    step(skipped, weight, gradient);
    step(resumed, resumed_weight, gradient);
    step(of_torch, torch_weight, gradient);
  }
  EXPECT_TRUE(at::allclose(weight, expected)) << weight;
  EXPECT_TRUE(at::allclose(resumed_weight, expected)) << resumed_weight;
  EXPECT_TRUE(at::allclose(torch_weight, expected)) << torch_weight;
}

TEST(OptimizerStateTest, DampensAtOnceWhereThereIsMomentumAlready) {
  auto weight = at::ones({4}).requires_grad_(), expected = at::ones({4}).requires_grad_();
  SGD sgd({weight}, SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD oracle({expected}, torch::optim::SGDOptions(0.1).momentum(0.9));
  for (const double dampening : {0.0, 0.0, 0.5, 0.5}) {
    for (torch::optim::Optimizer* const each : std::initializer_list<torch::optim::Optimizer*>{&sgd, &oracle}) {
      static_cast<torch::optim::SGDOptions&>(each->param_groups()[0].options()).dampening(dampening);
      each->param_groups()[0].params()[0].mutable_grad() = at::ones({4});
      each->step();
    }
  }
  EXPECT_TRUE(at::allclose(weight, expected)) << weight << expected;
}

}  // namespace
}  // namespace mezzo
