#include "mezzo/amp/grad_scaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "amp/fused_sgd.h"

namespace mezzo {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();

/// The message of the `Error` that `call` throws; empty, with a failure, if none.
template <class Error = c10::Error>
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  ADD_FAILURE() << "nothing thrown";
  return {};
}

torch::Tensor weights(int64_t size = 2) { return torch::ones({size}, torch::requires_grad()); }

/// Gives `weight` this gradient, scaled, by a backward pass.
void backward(GradScaler& scaler, const torch::Tensor& weight, const std::vector<float>& gradient) {
  scaler.scale((weight * torch::tensor(gradient).to(weight.device())).sum()).backward();
}

/// Gives `weight` exactly this gradient, as if a scaled backward had; the scaler has its scale then.
void set_gradient(GradScaler& scaler, torch::Tensor& weight, const torch::Tensor& gradient) {
  scaler.scale(torch::zeros({}));
  weight.mutable_grad() = gradient;
}

torch::optim::SGD sgd_for(std::vector<torch::Tensor> parameters, double lr = 0.5) {
  return torch::optim::SGD(std::move(parameters), lr);
}

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
            "to be unscaled in place. Keep parameters in float32 and run forward under AutocastGuard, or use an "
            "optimizer with float32 master weights.");
  EXPECT_TRUE(torch::equal(weight.grad(), torch::ones({2}))) << "nothing has changed";
  auto complex_sgd = sgd_for({complex});
  set_gradient(scaler, complex, torch::ones({1}, torch::kComplexFloat));
  EXPECT_EQ(error_of<c10::ValueError>([&] { scaler.unscale_(complex_sgd); }),
            "GradScaler: parameter 0 of group 0 of torch::optim::SGD has a gradient of dtype ComplexFloat and shape "
            "[1]; only floating-point gradients can be unscaled. Give that parameter an optimizer that the scaler does "
            "not see.");
}

/// SGD of a float32 master, where there is one, that a half parameter has its values from.
class MasteredSgd : public FusedSgd {
 public:
  MasteredSgd(const torch::Tensor& half, torch::Tensor master, double lr)
      : FusedSgd({half}, lr), half_(half), master_(std::move(master)), lr_(lr) {}

  void visit_parameters(const ParameterVisitor& visit) override {
    auto& owner = has_moved() ? master_ : half_;
    visit(owner);
  }
  torch::Tensor master_of(size_t /*index*/) const override { return has_moved() ? torch::Tensor() : master_; }
  torch::Tensor step_scaled(const std::optional<torch::Tensor>& grad_scale, const torch::Tensor& found_inf) override {
    const torch::NoGradGuard no_grad;
    if (found_inf.item<float>() == 0) {
      const auto gradient = (has_moved() ? master_ : half_).grad().to(torch::kFloat);
      master_ -= lr_ * (grad_scale ? gradient / *grad_scale : gradient);
      half_.copy_(master_);
    }
    return {};
  }

 private:
  bool has_moved() const { return master_.defined() && master_.grad().defined(); }

  torch::Tensor half_, master_;
  double lr_;
};

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

/// An optimizer that updates nothing from its half gradients, as one whose parameters another process updates.
class HalfSgd : public MasteredSgd {
 public:
  explicit HalfSgd(const torch::Tensor& half) : MasteredSgd(half, {}, 0.5) {}
  bool allows_half_gradients() const override { return true; }
  torch::Tensor step_scaled(const std::optional<torch::Tensor>&, const torch::Tensor&) override { return {}; }
};

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

TEST(GradScalerTest, PassesOverAnOptimizerWithoutGradientsOnRequestOnly) {
  auto weight = weights();
  auto sgd = sgd_for({weight});
  GradScaler strict;
  strict.scale(torch::ones({}));
  const std::string message =
      "GradScaler: no gradient of torch::optim::SGD was checked: none of its 1 parameters had one. Run backward on "
      "scaler.scale(loss) before unscale_() or step(), or set GradScalerOptions().allow_no_gradients(true) to pass "
      "over such optimizers.";
  EXPECT_EQ(error_of([&] { strict.step(sgd); }), message);
  FusedSgd fused({weight}, 0.5);
  EXPECT_THAT(error_of([&] { strict.step(fused); }), testing::HasSubstr("no gradient of FusedSgd was checked"));

  GradScaler scaler(GradScalerOptions().allow_no_gradients(true));
  scaler.scale(torch::ones({}));
  EXPECT_FALSE(scaler.step(sgd).stepped());
  EXPECT_FALSE(scaler.step(fused).stepped());
  EXPECT_THAT(error_of([&] { scaler.step(sgd); }), testing::HasSubstr("step() has already been called"));
  scaler.update();
  EXPECT_EQ(scaler.get_growth_tracker(), 0) << "nothing was learnt";
}

TEST(GradScalerTest, StepsAnOptimizerThatAppliesTheScaleItself) {
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

/// An optimizer that is both kinds, as one that learning-rate schedulers of LibTorch drive would be.
class BothKinds : public torch::optim::SGD, public AmpOptimizer {
 public:
  using torch::optim::SGD::SGD;
  std::string name() const override { return "BothKinds"; }
  void visit_parameters(const ParameterVisitor& visit) override {
    auto& parameters = param_groups()[0].params();
    std::for_each(parameters.begin(), parameters.end(), visit);
  }
  at::Tensor step(const Closure& closure) override { return torch::optim::SGD::step(closure); }
};

TEST(GradScalerTest, TakesAnOptimizerOfBothKindsAsAnAmpOptimizer) {
  auto weight = weights();
  BothKinds optimizer({weight}, 0.5);
  torch::optim::Optimizer& behind_base = optimizer;
  GradScaler scaler;
  backward(scaler, weight, {1.0f, 1.0f});
  scaler.unscale_(optimizer);
  EXPECT_THAT(error_of([&] { scaler.unscale_(behind_base); }), testing::HasSubstr("called on BothKinds since"));
}

/// An optimizer whose step takes arguments of its own.
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

/// GradScalerOptions with an `agree` that throws while `fails`.
GradScalerOptions agreeing_unless(const bool& fails) {
  return GradScalerOptions().agree([&](torch::Tensor& /*flags*/) { TORCH_CHECK(!fails, "a rank is lost"); });
}

TEST(GradScalerTest, LeavesGradientsScaledAndTheOptimizerReadyWhenAgreeThrows) {
  bool fails = true;
  for (const bool unscale : {true, false}) {
    auto weight = weights();
    auto sgd = sgd_for({weight});
    GradScaler scaler(agreeing_unless(fails));
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

TEST(GradScalerTest, LeavesHalfGradientsWhereTheyAreWhenAgreeThrows) {
  bool fails = true;
  auto half = torch::zeros({2}, torch::TensorOptions(torch::kHalf).requires_grad(true)), master = weights();
  MasteredSgd optimizer(half, master, 0.5);
  GradScaler scaler(agreeing_unless(fails));
  set_gradient(scaler, half, torch::full({2}, 32768.0, torch::kHalf));
  EXPECT_EQ(error_of([&] { scaler.unscale_(optimizer); }), "a rank is lost");
  EXPECT_TRUE(torch::equal(half.grad(), torch::full({2}, 32768.0, torch::kHalf)));
  EXPECT_FALSE(master.grad().defined());
  fails = false;
  scaler.unscale_(optimizer);
  EXPECT_TRUE(torch::equal(master.grad(), torch::full({2}, 0.5)));
}

TEST(GradScalerTest, AgreesOnTheVerdictThatUnscalingComesTo) {
  // 1 / scale times the largest bfloat16 is finite in float32, but rounds to inf in bfloat16, where it is kept.
  for (const bool agrees : {false, true}) {
    const bool never = false;
    auto weight = torch::ones({2}, torch::TensorOptions(torch::kBFloat16).requires_grad(true));
    auto sgd = sgd_for({weight});
    GradScaler scaler((agrees ? agreeing_unless(never) : GradScalerOptions()).init_scale(0.9975));
    set_gradient(scaler, weight, torch::full({2}, 3.3895e38, torch::kBFloat16));
    EXPECT_FALSE(scaler.step(sgd).stepped()) << agrees;
    EXPECT_TRUE(weight.grad().isinf().all().item<bool>());
  }
}

/// An optimizer that applies the scale itself and skips when told to by `skips`, whatever the scaler found.
class Wilful : public FusedSgd {
 public:
  using FusedSgd::FusedSgd;
  torch::Tensor found_inf() const override { return torch::full({}, skips ? 1.0 : 0.0); }
  torch::Tensor step(const Closure& /*closure*/) override { return {}; }
  torch::Tensor step_scaled(const std::optional<torch::Tensor>&, const torch::Tensor&) override { return {}; }
  bool skips = false;
};

TEST(GradScalerTest, TakesTheUpdatesVerdictForTheLastWord) {
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

// --- Closures ---

/// A quadratic with minimum at (3, -1), and a closure over it that overflows at chosen evaluations.
struct Quadratic {
  torch::Tensor weight = torch::zeros({2}, torch::requires_grad());
  int evaluations = 0;
  int overflow_at = -1;

  AmpOptimizer::Closure closure(GradScaler* scaler) {
    return [this, scaler] {
      weight.mutable_grad().reset();
      const auto curvature = torch::tensor({1.0f, 10.0f});
      auto loss = (curvature * (weight - torch::tensor({3.0f, -1.0f})).square()).sum();
      if (++evaluations == overflow_at) {
        loss = loss * kInf;
      }
      (scaler ? scaler->scale(loss) : loss).backward();
      return loss.detach();
    };
  }
};

auto lbfgs_options() { return torch::optim::LBFGSOptions(0.1).max_iter(4).line_search_fn("strong_wolfe"); }

TEST(GradScalerClosureTest, StepsAsTheOptimizerWouldWithoutAScaler) {
  Quadratic scaled;
  Quadratic plain;
  torch::optim::LBFGS scaled_lbfgs({scaled.weight}, lbfgs_options());
  torch::optim::LBFGS plain_lbfgs({plain.weight}, lbfgs_options());
  GradScaler scaler;
  for (int i = 0; i < 3; ++i) {
    const auto result = scaler.step(scaled_lbfgs, scaled.closure(&scaler));
    const auto loss = plain_lbfgs.step(plain.closure(nullptr));
    scaler.update();
    EXPECT_TRUE(result.stepped());
    EXPECT_TRUE(torch::equal(result.loss(), loss));
    EXPECT_TRUE(torch::equal(scaled.weight, plain.weight)) << "a power-of-two scale, undone, changes nothing";
    EXPECT_EQ(scaled.evaluations, plain.evaluations);
  }
  EXPECT_GT(scaled.evaluations, 6);
  EXPECT_EQ(scaler.get_growth_tracker(), 3);
}

TEST(GradScalerClosureTest, SkipsWhenTheFirstEvaluationOverflows) {
  Quadratic problem;
  problem.overflow_at = 1;
  torch::optim::LBFGS lbfgs({problem.weight}, lbfgs_options());
  GradScaler scaler(GradScalerOptions().init_scale(8.0));
  const auto result = scaler.step(lbfgs, problem.closure(&scaler));
  EXPECT_FALSE(result.stepped());
  EXPECT_TRUE(result.loss().isinf().item<bool>());
  EXPECT_EQ(problem.evaluations, 1);
  EXPECT_TRUE(torch::equal(problem.weight, torch::zeros({2})));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 4.0);
}

TEST(GradScalerClosureTest, PutsEverythingBackWhenALaterEvaluationOverflows) {
  for (const int steps_before : {0, 1, 2}) {
    for (int overflow_in = 2; overflow_in <= 5; ++overflow_in) {
      Quadratic problem;
      Quadratic untouched;
      torch::optim::LBFGS lbfgs({problem.weight}, lbfgs_options());
      torch::optim::LBFGS plain({untouched.weight}, lbfgs_options());
      GradScaler scaler;
      for (int i = 0; i < steps_before; ++i) {
        scaler.step(lbfgs, problem.closure(&scaler));
        plain.step(untouched.closure(nullptr));
        scaler.update();
      }
      problem.overflow_at = problem.evaluations + overflow_in;

      const auto skipped = scaler.step(lbfgs, problem.closure(&scaler));
      scaler.update();

      EXPECT_FALSE(skipped.stepped());
      EXPECT_EQ(problem.evaluations, problem.overflow_at) << "no evaluation after the overflow";
      EXPECT_TRUE(torch::equal(problem.weight, untouched.weight)) << problem.weight;
      EXPECT_EQ(scaler.get_scale(), 32768.0);

      scaler.step(lbfgs, problem.closure(&scaler));
      plain.step(untouched.closure(nullptr));
      EXPECT_TRUE(torch::equal(problem.weight, untouched.weight)) << "as if the skipped step had never begun";
    }
  }
}

TEST(GradScalerClosureTest, EvaluatesOnceForAnOptimizerThatAppliesTheScaleItself) {
  Quadratic problem;
  FusedSgd fused({problem.weight}, 0.01);
  GradScaler scaler;
  const auto result = scaler.step(fused, problem.closure(&scaler));
  EXPECT_TRUE(result.stepped());
  EXPECT_EQ(result.loss().item<float>(), 19.0f);
  EXPECT_EQ(problem.evaluations, 1);
  EXPECT_TRUE(torch::allclose(problem.weight, torch::tensor({0.06f, -0.2f}))) << problem.weight;
}

TEST(GradScalerClosureTest, ExplainsMisuse) {
  Quadratic problem;
  torch::optim::LBFGS lbfgs({problem.weight}, lbfgs_options());
  GradScaler scaler;
  EXPECT_EQ(error_of([&] { scaler.step(lbfgs, problem.closure(nullptr)); }),
            "GradScaler: the closure given to step() did not call scale(). Let it run backward on scaler.scale(loss) "
            "and return the loss.");
  problem.closure (&scaler)();
  scaler.unscale_(lbfgs);
  EXPECT_EQ(error_of([&] { scaler.step(lbfgs, problem.closure(&scaler)); }),
            "GradScaler: step() with a closure was called on torch::optim::LBFGS after unscale_(). Leave unscale_() "
            "out: every gradient that the closure computes is unscaled for you.");
  scaler.update();
  EXPECT_THROW(scaler.step(lbfgs, []() -> torch::Tensor { throw std::runtime_error("from the closure"); }),
               std::runtime_error);
  EXPECT_TRUE(scaler.step(lbfgs, problem.closure(&scaler)).stepped()) << "a closure that threw leaves it ready";
}

// --- Options, manual scales, state ---

TEST(GradScalerTest, RefusesOptionsOutOfRange) {
  const auto message = [](GradScalerOptions options) {
    return error_of<c10::ValueError>([&] { GradScaler scaler(options); });
  };
  EXPECT_EQ(message(GradScalerOptions().init_scale(0.0)),
            "GradScaler: init_scale must be positive and finite in float32, got 0.");
  for (const double bad : {-1.0, 1e39, 1e-60, double{kInf}, double{kNaN}}) {
    EXPECT_THAT(message(GradScalerOptions().init_scale(bad)), testing::HasSubstr("must be positive and finite"));
  }
  EXPECT_EQ(message(GradScalerOptions().init_scale(1.0).min_scale(2.0).max_scale(8.0)),
            "GradScaler: init_scale must be between min_scale 2 and max_scale 8, got 1.");
  EXPECT_EQ(message(GradScalerOptions().min_scale(4.0).max_scale(2.0)),
            "GradScaler: min_scale and max_scale must satisfy 0 <= min_scale <= max_scale <= 3.40282e+38, got 4 and "
            "2.");
  EXPECT_EQ(message(GradScalerOptions().growth_factor(1.0)),
            "GradScaler: growth_factor must be finite and > 1, got 1.");
  EXPECT_EQ(message(GradScalerOptions().backoff_factor(1.0)),
            "GradScaler: backoff_factor must be between 0 and 1, got 1. For a scale that stays as it is, use "
            "GradScalerOptions().static_scale(true).");
  EXPECT_THAT(message(GradScalerOptions().backoff_factor(0.0)), testing::HasSubstr("between 0 and 1, got 0"));
  EXPECT_EQ(message(GradScalerOptions().growth_interval(0)),
            "GradScaler: growth_interval must be between 1 and 2147483647, got 0. For a scale that stays as it is, use "
            "GradScalerOptions().static_scale(true).");
  GradScaler scaler;
  EXPECT_THROW(scaler.set_growth_factor(0.5), c10::ValueError);
  EXPECT_THROW(scaler.set_backoff_factor(kNaN), c10::ValueError);
  EXPECT_THROW(scaler.set_growth_interval(-1), c10::ValueError);
  EXPECT_EQ(scaler.get_growth_factor(), 2.0);
  EXPECT_EQ(scaler.get_backoff_factor(), 0.5);
  EXPECT_EQ(scaler.get_growth_interval(), 2000);
}

TEST(GradScalerTest, TakesANewScaleFromANumberOrATensor) {
  GradScaler scaler(GradScalerOptions().max_scale(1e6));
  scaler.scale(torch::ones({}));
  scaler.update(1024);
  EXPECT_EQ(scaler.get_scale(), 1024.0);
  scaler.update(torch::full({1}, 32.0, torch::kDouble));
  EXPECT_EQ(scaler.get_scale(), 32.0);
  const std::string message =
      "GradScaler: the new scale given to update() must be a number, or a 1-element tensor on the CPU or on cpu that "
      "requires no gradient.";
  for (const auto& bad : {torch::Tensor(), torch::ones({2}), torch::ones({1}, torch::requires_grad())}) {
    EXPECT_EQ(error_of<c10::ValueError>([&] { scaler.update(bad); }), message);
  }
  EXPECT_EQ(error_of<c10::ValueError>([&] { scaler.update(2e6); }),
            "GradScaler: the new scale given to update() must be between min_scale 1.17549e-38 and max_scale 1e+06, "
            "got 2e+06.");
  EXPECT_EQ(scaler.get_scale(), 32.0);
}

TEST(GradScalerTest, RoundTripsItsStateWithPyTorchsKeys) {
  auto weight = weights();
  auto sgd = sgd_for({weight});
  GradScaler saved(GradScalerOptions().init_scale(8.0).growth_factor(3.0).backoff_factor(0.25).growth_interval(5));
  backward(saved, weight, {1.0f, 1.0f});
  saved.step(sgd);
  saved.update();
  const auto state = saved.state_dict();
  std::vector<std::string> keys;
  for (const auto& [key, value] : state) {
    keys.push_back(key);
  }
  EXPECT_THAT(keys,
              testing::ElementsAre("_growth_tracker", "backoff_factor", "growth_factor", "growth_interval", "scale"));

  GradScaler lazy;
  lazy.load_state_dict(state);
  GradScaler started;
  started.scale(torch::ones({}));
  started.load_state_dict(state);
  for (GradScaler* loaded : {&lazy, &started}) {
    EXPECT_EQ(loaded->get_scale(), 8.0);
    EXPECT_EQ(loaded->get_growth_factor(), 3.0);
    EXPECT_EQ(loaded->get_backoff_factor(), 0.25);
    EXPECT_EQ(loaded->get_growth_interval(), 5);
    EXPECT_EQ(loaded->get_growth_tracker(), 1);
  }
}

TEST(GradScalerTest, RoundTripsThroughAnArchive) {
  const auto options = GradScalerOptions().init_scale(512.0).growth_interval(7).hysteresis(3);
  GradScaler scaler(options);
  scaler.scale(torch::zeros({}));
  scaler.update(64.0);
  std::stringstream file;
  torch::save(scaler, file);
  GradScaler other(GradScalerOptions().hysteresis(3));
  torch::load(other, file);
  EXPECT_EQ(other.get_scale(), 64.0);
  EXPECT_EQ(other.get_growth_interval(), 7);
  EXPECT_EQ(other.state_dict().size(), 6u);

  std::stringstream of_tensor;
  torch::save(torch::ones({2}), of_tensor);
  EXPECT_THROW(torch::load(other, of_tensor), c10::Error);
  EXPECT_EQ(other.get_scale(), 64.0);
}

TEST(GradScalerTest, RefusesAStateThatIsEmptyIncompleteOrOutOfRange) {
  GradScaler scaler;
  const auto good = scaler.state_dict();
  EXPECT_EQ(error_of([&] { scaler.load_state_dict({}); }),
            "GradScaler: the state_dict is empty; it may come from a disabled scaler. Load it only if it has entries, "
            "or save it from an enabled one.");
  auto missing = good;
  missing.erase("growth_factor");
  EXPECT_EQ(error_of<c10::ValueError>([&] { scaler.load_state_dict(missing); }),
            "GradScaler: the state_dict has no entry \"growth_factor\". Pass one that GradScaler's state_dict() "
            "returned.");
  const std::vector<std::pair<std::string, c10::Scalar>> bad_entries = {
      {"scale", 0.0},         {"scale", true},          {"growth_factor", 1.0}, {"backoff_factor", kInf},
      {"growth_interval", 0}, {"growth_interval", 2.5}, {"_growth_tracker", -1}};
  for (const auto& [key, value] : bad_entries) {
    auto bad = good;
    bad[key] = value;
    bad["scale"] = key == "scale" ? value : c10::Scalar(2.0);
    EXPECT_THROW(scaler.load_state_dict(bad), c10::ValueError) << key;
    EXPECT_EQ(scaler.get_scale(), 65536.0) << "nothing has changed";
  }
}

// --- The defects of PyTorch 2.13 that mezzo does not have, by default ---

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
    set_gradient(low, other, torch::full({2}, kLargest));
    EXPECT_EQ(low.step(other_fused).stepped(), reproduce_pytorch);
    EXPECT_EQ(torch::equal(other, torch::ones({2})), !reproduce_pytorch) << other;
  }
}

// --- Devices ---

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
