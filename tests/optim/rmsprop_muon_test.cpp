#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/rmsprop.h>

#include <cmath>

#include "mezzo/optim/muon.h"
#include "mezzo/optim/rmsprop.h"

namespace mezzo {
namespace {

TEST(RMSpropTest, ReproducesPyTorchOverSeveralSteps) {
  at::manual_seed(3);
  const auto start = at::randn({6, 5});
  auto weight = start.clone().requires_grad_(), torch_weight = start.clone().requires_grad_();
  RMSprop rmsprop({weight}, RMSpropOptions().lr(0.05).momentum(0.9).centered(true).eps(1e-3));
  torch::optim::RMSprop torch_rmsprop({torch_weight},
                                      torch::optim::RMSpropOptions(0.05).momentum(0.9).centered(true).eps(1e-3));
  for (int step = 0; step < 5; ++step) {
    weight.mutable_grad() = at::randn({6, 5});
    torch_weight.mutable_grad() = weight.grad().clone();
    rmsprop.step();
    torch_rmsprop.step();
  }
  EXPECT_TRUE(at::allclose(weight, torch_weight, 1e-5, 1e-5)) << "a few roundings a step";
  EXPECT_THROW(RMSprop({{"weight", weight}}, RMSpropOptions().eps(-1)), c10::ValueError);
}

TEST(MuonTest, MovesAWeightByOrthogonalDirections) {
  at::manual_seed(3);
  auto weight = at::zeros({8, 4}).requires_grad_();
  Muon muon({weight}, MuonOptions().lr(1).weight_decay(0));
  weight.mutable_grad() = at::randn({8, 4}) * 100;
  muon.step();
  const auto singular_values = at::linalg_svdvals(weight.detach() / std::sqrt(2.0));
  // Five iterations bring singular values near 1, to 0.7 ... 1.2, with one bfloat16 rounding each.
  EXPECT_TRUE(at::all(singular_values > 0.6).item<bool>()) << singular_values;
  EXPECT_TRUE(at::all(singular_values < 1.3).item<bool>()) << singular_values;
}

TEST(MuonTest, NamesAParameterThatIsNoMatrix) {
  auto bias = at::zeros({4}).requires_grad_();
  try {
    Muon muon({{"layer.bias", bias}});
    FAIL() << "took a bias";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("Muon: layer.bias has sizes [4]"));
  }
  EXPECT_THROW(Muon({{"w", at::zeros({2, 2}).requires_grad_()}}, MuonOptions().adjust_lr_fn("none")), c10::ValueError);
}

}  // namespace
}  // namespace mezzo
