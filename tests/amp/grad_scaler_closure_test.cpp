#include <gtest/gtest.h>
#include <torch/optim/lbfgs.h>

#include <stdexcept>

#include "amp/grad_scaler_fixture.h"

namespace mezzo {
namespace {

/// A quadratic with minimum at (3, -1), and a closure over it that overflows at chosen evaluations.
struct Quadratic {
  torch::Tensor weight = torch::zeros({2}, torch::requires_grad());
  int evaluations = 0;
  int overflow_at = -1;

  torch::optim::Optimizer::LossClosure closure(GradScaler* scaler) {
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

TEST(GradScalerClosureTest, EvaluatesOnceForAnOptimizerThatSkipsOnTheDevice) {
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
            "out: step() unscales the gradients of each closure call.");
  scaler.update();
  EXPECT_THROW(scaler.step(lbfgs, []() -> torch::Tensor { throw std::runtime_error("from the closure"); }),
               std::runtime_error);
  EXPECT_TRUE(scaler.step(lbfgs, problem.closure(&scaler)).stepped()) << "a closure that threw leaves it ready";
}

}  // namespace
}  // namespace mezzo
