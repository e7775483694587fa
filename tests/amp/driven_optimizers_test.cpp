#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>

#include "amp/grad_scaler_fixture.h"

namespace mezzo {
namespace {

TEST(GradScalerTest, RepeatsAStepThatIsUndone) {
  auto weight = weights(), other = weights();
  auto sgd = sgd_for({weight});
  FusedSgd fused({other}, 0.5);
  GradScaler scaler(GradScalerOptions().init_scale(4.0));
  set_gradient(scaler, weight, torch::ones({2}));
  set_gradient(scaler, other, torch::ones({2}));
  for (torch::optim::Optimizer* optimizer : std::initializer_list<torch::optim::Optimizer*>{&sgd, &fused}) {
    scaler.undo_step(*optimizer);  // without an effect
    scaler.step(*optimizer);
    EXPECT_THROW(scaler.step(*optimizer), c10::Error);
    scaler.undo_step(*optimizer);
  }
  set_gradient(scaler, other, torch::ones({2}));  // the kernel has unscaled it
  EXPECT_TRUE(scaler.step(sgd).stepped() && scaler.step(fused).stepped());
  EXPECT_TRUE(torch::equal(weight, torch::full({2}, 0.75))) << weight;
  EXPECT_TRUE(torch::equal(other, weight)) << other;
}

TEST(GradScalerTest, PassesOverAnOptimizerWithoutGradientsOnRequestOnly) {
  auto weight = weights();
  auto sgd = sgd_for({weight});
  GradScaler strict;
  strict.scale(torch::ones({}));
  const std::string message =
      "GradScaler: no gradient of torch::optim::SGD was checked: none of its 1 parameters had one. Run backward on "
      "scaler.scale(loss) before unscale_() or step(), or set the option allow_no_gradients to pass over such "
      "optimizers.";
  EXPECT_EQ(error_of([&] { strict.step(sgd); }), message);
  FusedSgd fused({weight}, 0.5);
  EXPECT_THAT(error_of([&] { strict.step(fused); }), testing::HasSubstr("no gradient of mezzo::FusedSgd was checked"));

  GradScaler scaler(GradScalerOptions().allow_no_gradients(true));
  scaler.scale(torch::ones({}));
  EXPECT_FALSE(scaler.step(sgd).stepped());
  EXPECT_FALSE(scaler.step(fused).stepped());
  EXPECT_THAT(error_of([&] { scaler.step(sgd); }), testing::HasSubstr("step() has already been called"));
  scaler.update();
  EXPECT_EQ(scaler.get_growth_tracker(), 0) << "nothing was learnt";
}

TEST(GradScalerTest, LetsAnOptimizerUnscaleAndSkipOnTheDevice) {
  auto weight = weights();
  FusedSgd fused({weight}, 0.5);
  GradScaler scaler(GradScalerOptions().init_scale(8.0));
  backward(scaler, weight, {1.0f, -2.0f});
  auto result = scaler.step(fused);
  EXPECT_TRUE(result.stepped());
  EXPECT_TRUE(torch::equal(weight, torch::tensor({0.5f, 2.0f}))) << weight;
  scaler.update();

  weight.mutable_grad().reset();
  backward(scaler, weight, {1.0f, -2.0f});
  scaler.unscale_(fused);
  EXPECT_TRUE(scaler.step(fused).stepped());
  EXPECT_TRUE(torch::equal(weight, torch::tensor({0.0f, 3.0f}))) << "not unscaled twice: " << weight;
  scaler.update();

  weight.mutable_grad().reset();
  backward(scaler, weight, {1.0f, kInf});
  EXPECT_FALSE(scaler.step(fused).stepped());
  scaler.update();
  EXPECT_TRUE(torch::equal(weight, torch::tensor({0.0f, 3.0f}))) << weight;
  EXPECT_EQ(scaler.get_scale(), 4.0);
}

TEST(GradScalerTest, KnowsAnOptimizerBehindLibTorchsBaseClass) {
  auto weight = weights();
  FusedSgd optimizer({weight}, 0.5);
  torch::optim::Optimizer& behind_base = optimizer;
  GradScaler scaler;
  backward(scaler, weight, {1.0f, 1.0f});
  scaler.unscale_(optimizer);
  EXPECT_THAT(error_of([&] { scaler.unscale_(behind_base); }), testing::HasSubstr("called on mezzo::FusedSgd since"));
}

/// An optimizer of a user's own, as the guide shows: sign descent.
class SignSgd : public torch::optim::Optimizer {
 public:
  SignSgd(std::vector<torch::Tensor> parameters, double lr)
      : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(lr)) {}
  torch::Tensor step(LossClosure closure = nullptr) override {
    const torch::NoGradGuard no_grad;
    torch::Tensor loss = closure ? closure() : torch::Tensor();
    for (auto& group : param_groups()) {
      for (torch::Tensor& parameter : group.params()) {
        if (parameter.grad().defined()) {
          parameter.sub_(parameter.grad().sign(), group.options().get_lr());
        }
      }
    }
    return loss;
  }
};

TEST(GradScalerTest, DrivesAnOptimizerOfYourOwn) {
  auto weight = weights();
  SignSgd optimizer({weight}, 0.5);
  GradScaler scaler(GradScalerOptions().init_scale(8.0));
  backward(scaler, weight, {3.0f, -2.0f});
  EXPECT_TRUE(scaler.step(optimizer).stepped());
  EXPECT_TRUE(torch::equal(weight.grad(), torch::tensor({3.0f, -2.0f}))) << "unscaled";
  EXPECT_TRUE(torch::equal(weight, torch::tensor({0.5f, 1.5f}))) << weight;
  scaler.update();
  optimizer.zero_grad();
  backward(scaler, weight, {kInf, 1.0f});
  EXPECT_FALSE(scaler.step(optimizer).stepped());
  EXPECT_TRUE(torch::equal(weight, torch::tensor({0.5f, 1.5f}))) << weight;
}

/// An optimizer whose step takes more arguments.
class NoisySgd : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;
  using torch::optim::SGD::step;
  torch::Tensor step(double noise, const std::string& label) {
    seen = label;
    SGD::step();
    return torch::full({}, noise);
  }
  void step(int repetitions) {
    for (int i = 0; i < repetitions; ++i) {
      SGD::step();
    }
  }
  std::string seen;
};

TEST(GradScalerTest, PassesArgumentsOnToTheOptimizersStep) {
  auto weight = weights();
  NoisySgd optimizer({weight}, 0.5);
  GradScaler scaler;
  backward(scaler, weight, {1.0f, 1.0f});
  const auto result = scaler.step(optimizer, 0.25, "label");
  EXPECT_TRUE(result.stepped());
  EXPECT_EQ(result.loss().item<float>(), 0.25f);
  EXPECT_EQ(optimizer.seen, "label");
  scaler.update();
  backward(scaler, weight, {0.0f, 1.0f});  // on top of a gradient already unscaled
  scaler.step(optimizer, 2);
  scaler.update();
  weight.mutable_grad().reset();
  backward(scaler, weight, {kInf, 1.0f});
  EXPECT_FALSE(scaler.step(optimizer, 0.5, "skipped").stepped());
  EXPECT_EQ(optimizer.seen, "label");
}

TEST(GradScalerTest, KeepsGradientsUnscaledWhenTheOptimizersStepThrows) {
  class Failing : public torch::optim::SGD {
   public:
    using torch::optim::SGD::SGD;
    torch::Tensor step(LossClosure closure = nullptr) override {
      TORCH_CHECK(!fail, "no step today");
      return SGD::step(closure);
    }
    bool fail = true;
  };
  auto weight = weights();
  Failing optimizer({weight}, 0.5);
  GradScaler scaler;
  backward(scaler, weight, {1.0f, 1.0f});
  EXPECT_EQ(error_of([&] { scaler.step(optimizer); }), "no step today");
  optimizer.fail = false;
  EXPECT_TRUE(scaler.step(optimizer).stepped());
  EXPECT_TRUE(torch::equal(weight, torch::full({2}, 0.5))) << "unscaled once, not twice: " << weight;
}

/// An optimizer that skips if `skips` is set, whatever the scaler found.
class Wilful : public FusedSgd {
 public:
  using FusedSgd::FusedSgd;
  torch::Tensor found_inf() const override { return torch::full({}, skips ? 1.0 : 0.0); }
  torch::Tensor step(LossClosure /*closure*/ = nullptr) override { return {}; }
  torch::Tensor step_scaled(const std::optional<torch::Tensor>&, const torch::Tensor&) override { return {}; }
  bool skips = false;
};

TEST(GradScalerTest, FollowsTheFoundInfOfTheOptimizer) {
  for (const bool enabled : {true, false}) {
    for (const bool skips : {false, true}) {
      auto weight = weights();
      Wilful optimizer({weight}, 0.5);
      optimizer.skips = skips;
      GradScaler scaler(GradScalerOptions().init_scale(8.0).growth_interval(1).enabled(enabled));
      backward(scaler, weight, {1.0f, 1.0f});
      const auto result = scaler.step(optimizer);
      EXPECT_EQ(result.stepped(), !skips);
      EXPECT_EQ(result.found_inf().item<float>(), skips ? 1.0f : 0.0f);
      scaler.update();
      EXPECT_EQ(scaler.get_scale(), !enabled ? 1.0 : skips ? 4.0 : 16.0);
    }
  }
}

TEST(GradScalerTest, CountsTheSkipsThatTheUpdateFindsInARow) {
  auto weight = weights();
  Wilful optimizer({weight}, 0.5);
  optimizer.skips = true;
  GradScaler scaler(GradScalerOptions().max_consecutive_skips(2));
  backward(scaler, weight, {1.0f, 1.0f});
  scaler.step(optimizer);
  scaler.update();
  backward(scaler, weight, {1.0f, 1.0f});
  EXPECT_THAT(error_of([&] { scaler.step(optimizer); }),
              testing::StartsWith("GradScaler: the last 2 iterations in a row were skipped"));
}

}  // namespace
}  // namespace mezzo
