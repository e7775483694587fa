#include "text/train/weight_average.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace mezzo::text {
namespace {

/// A weight that is `step` after each step, and its average by the formula.
class WeightAverageTest : public testing::Test {
 protected:
  void take_step(WeightAverage& average, bool is_skipped = false) {
    if (!is_skipped) {
      ++steps_;
      weight_.fill_(static_cast<double>(steps_));
      const double decay = std::min(kDecay, (1.0 + steps_) / (10.0 + steps_));
      expected_ = decay * expected_ + (1 - decay) * steps_;
    }
    average.update(at::full({}, is_skipped ? 1.0 : 0.0));
    // A few roundings of float32 a step, each of which counts less with every further one.
    ASSERT_NEAR(average.averages().at("w").item<double>(), expected_, 1e-6 * steps_) << steps_;
  }

  WeightAverage average() const {
    NamedParameter parameter{.name = "w", .tensor = weight_};
    parameter.tensor.requires_grad_();
    return WeightAverage({parameter}, kDecay);
  }

  static constexpr double kDecay = 0.75;  // which (1 + t) / (10 + t) reaches at step 26
  at::Tensor weight_ = at::zeros({});
  double expected_ = 0;
  int steps_ = 0;
};

TEST_F(WeightAverageTest, WarmsUpByTheStepsThatAreTaken) {
  const at::NoGradGuard no_grad;
  auto average = this->average();
  for (int i = 0; i < 40; ++i) {
    take_step(average, /*is_skipped=*/i < 5 || i % 7 == 0);
  }
}

TEST_F(WeightAverageTest, GoesOnWhereItWas) {
  const at::NoGradGuard no_grad;
  auto first = average(), second = average();
  for (int i = 0; i < 5; ++i) {
    take_step(first);
  }
  second.load({{"w", first.averages().at("w").clone()}}, /*steps_taken=*/5);
  for (int i = 0; i < 5; ++i) {
    take_step(second);
  }
}

}  // namespace
}  // namespace mezzo::text
