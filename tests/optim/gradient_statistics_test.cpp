#include "mezzo/optim/detail/gradient_statistics.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>
#include <optional>
#include <vector>

#include "mezzo/amp/grad_scaler.h"
#include "mezzo/optim/sgd.h"

namespace mezzo {
namespace {

/// SGD of one parameter whose gradients are ones, and what its hook is asked.
struct Hooked {
  explicit Hooked(double max_grad_norm) : sgd({{"weight", weight}}, SGDOptions().lr(0.5).max_grad_norm(max_grad_norm)) {
    sgd.register_statistics_hook([this](const detail::GradientStatistics& own) {
      asked.push_back(own);
      return answer.is_measured ? answer : own;
    });
  }

  void backward(GradScaler& scaler) {
    weight.mutable_grad().reset();
    scaler.scale(weight.sum()).backward();
  }

  at::Tensor weight = torch::ones({4}).requires_grad_();
  SGD sgd;
  std::vector<detail::GradientStatistics> asked;
  detail::GradientStatistics answer;
};

TEST(GradientStatisticsTest, IsTheHooksForNormClippingAndSkipping) {
  Hooked hooked(/*max_grad_norm=*/1);
  hooked.answer = {.is_measured = true,
                   .norm = torch::full({}, 10.0f),
                   .sum_of_squares = torch::full({}, 100.0, torch::kDouble),
                   .found_inf = torch::zeros({})};
  GradScaler scaler(GradScalerOptions().init_scale(8));
  hooked.backward(scaler);
  EXPECT_TRUE(scaler.step(hooked.sgd).stepped());
  scaler.update();
  ASSERT_EQ(hooked.asked.size(), 1u) << "the check's statistics are the step's";
  EXPECT_EQ(hooked.asked[0].norm.item<float>(), 2);
  EXPECT_EQ(hooked.sgd.grad_norm().item<float>(), 10);
  EXPECT_TRUE(torch::allclose(hooked.weight, torch::full({4}, 0.95))) << "clipped by that norm: " << hooked.weight;

  hooked.answer.found_inf = torch::ones({});
  hooked.backward(scaler);
  const auto before = hooked.weight.detach().clone();
  EXPECT_FALSE(scaler.step(hooked.sgd).stepped());
  EXPECT_TRUE(torch::equal(hooked.weight, before));
  EXPECT_EQ(hooked.sgd.found_inf().item<float>(), 1);
}

TEST(GradientStatisticsTest, IsAskedForOncePerStepThatHasOne) {
  Hooked plain(/*max_grad_norm=*/0), clipped(/*max_grad_norm=*/1);
  GradScaler off(GradScalerOptions().enabled(false)), scaler(GradScalerOptions().init_scale(8));
  plain.backward(off);
  plain.sgd.step();
  EXPECT_TRUE(plain.asked.empty()) << "nothing was looked at";
  clipped.backward(off);
  clipped.sgd.step();
  EXPECT_EQ(clipped.asked.size(), 1u);

  plain.backward(scaler);
  scaler.unscale_(plain.sgd);
  scaler.step(plain.sgd);
  ASSERT_EQ(plain.asked.size(), 1u);
  EXPECT_FALSE(plain.asked[0].is_measured) << "it has the scaler's found_inf alone";
  EXPECT_TRUE(plain.asked[0].found_inf.defined());
  EXPECT_FALSE(plain.asked[0].norm.defined());
}

TEST(GradientMeasurementTest, AskingAboutGradientsLeavesNoState) {
  const auto weight = torch::ones({4}).requires_grad_();
  SGD sgd({{"weight", weight}}, SGDOptions().momentum(0.9).max_grad_norm(1));
  weight.mutable_grad() = torch::ones({4});
  EXPECT_EQ(sgd.check_gradients(torch::full({}, 8.0f)).value().item<float>(), 0);
  EXPECT_EQ(sgd.check_gradients(std::nullopt).value().item<float>(), 0);
  EXPECT_TRUE(sgd.state_dict().empty());
  weight.mutable_grad()[1] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sgd.check_gradients(torch::full({}, 8.0f)).value().item<float>(), 1);
  sgd.step();
  EXPECT_TRUE(torch::equal(weight, torch::ones({4})));
}

TEST(GradientMeasurementTest, IsOfTheStepThatItWasMadeFor) {
  const auto weight = torch::ones({4}).requires_grad_();
  SGD sgd({{"weight", weight}}, SGDOptions().lr(0.5).max_grad_norm(1));
  weight.mutable_grad() = torch::full({4}, 1024.0f);
  sgd.check_gradients(torch::full({}, 1024.0f));
  weight.mutable_grad() = torch::full({4}, 4.0f);
  sgd.step_scaled(std::nullopt, torch::zeros({}));
  EXPECT_EQ(sgd.grad_norm().item<float>(), 8) << "not that of the scaled gradients before";
  EXPECT_TRUE(torch::allclose(weight, torch::full({4}, 0.75)));
}

}  // namespace
}  // namespace mezzo
