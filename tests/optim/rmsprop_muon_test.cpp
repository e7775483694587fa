#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/rmsprop.h>
#include <torch/serialize.h>

#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "mezzo/optim/lamb.h"
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

/// Two optimizers of one kind. The second takes over the options and state that the first saves.
template <class First, class Second, class FirstOptions, class SecondOptions>
void expect_archive_to_go_on(const FirstOptions& options, const SecondOptions& other_options, double tolerance = 0) {
  at::manual_seed(3);
  auto weight = at::randn({6, 5}).requires_grad_(), other_weight = at::zeros({6, 5}).requires_grad_();
  First first({weight}, options);
  const auto step = [](torch::optim::Optimizer& optimizer, at::Tensor& trained, const at::Tensor& gradient) {
    trained.mutable_grad() = gradient.clone();
    optimizer.step();
  };
  for (int i = 0; i < 3; ++i) {
    step(first, weight, at::randn({6, 5}));
  }
  std::stringstream file;
  torch::save(first, file);
  Second second({other_weight}, other_options);
  torch::load(second, file);
  other_weight.detach().copy_(weight.detach());
  for (int i = 0; i < 3; ++i) {
    const auto gradient = at::randn({6, 5});
    step(first, weight, gradient);
    step(second, other_weight, gradient);
  }
  EXPECT_TRUE(at::allclose(other_weight, weight, tolerance, tolerance)) << (other_weight - weight).abs().max();
}

TEST(RMSpropTest, ExchangesArchivesWithLibTorch) {
  const auto options =
      torch::optim::RMSpropOptions(0.05).alpha(0.9).momentum(0.8).centered(true).eps(1e-3).weight_decay(0.1);
  constexpr double kRoundings = 1e-5;  // a few a step
  expect_archive_to_go_on<RMSprop, RMSprop>(RMSpropOptions(options), RMSpropOptions(1));
  expect_archive_to_go_on<RMSprop, torch::optim::RMSprop>(RMSpropOptions(options), torch::optim::RMSpropOptions(1),
                                                          kRoundings);
  expect_archive_to_go_on<torch::optim::RMSprop, RMSprop>(options, RMSpropOptions(1), kRoundings);
}

TEST(LAMBTest, GoesOnFromAnArchive) {
  expect_archive_to_go_on<LAMB, LAMB>(LAMBOptions(0.05).betas({0.8, 0.9}).eps(1e-3).weight_decay(0.1), LAMBOptions(1));
}

TEST(MuonTest, GoesOnFromAnArchiveWithItsOptions) {
  const auto options = MuonOptions(0.05)
                           .momentum(0.8)
                           .nesterov(false)
                           .ns_steps(3)
                           .ns_coefficients({3, -4, 2})
                           .adjust_lr_fn("match_rms_adamw")
                           .max_grad_norm(2);
  EXPECT_EQ(options.max_grad_norm(), 2) << "after setters of Muon's own";
  expect_archive_to_go_on<Muon, Muon>(options, MuonOptions(1).max_grad_norm(2));
}

/// The names of torch.optim.Muon in Python.
TEST(MuonTest, GivesAndTakesPyTorchsOptions) {
  const std::vector<at::Tensor> weights{at::ones({2, 2}).requires_grad_()};
  const Muon muon(weights, MuonOptions().ns_steps(3).adjust_lr_fn("match_rms_adamw"));
  const auto state = muon.torch_state_dict();
  std::vector<std::string> names;
  for (const auto& [name, value] : state.param_groups[0].options) {
    names.push_back(name);
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("lr", "weight_decay", "momentum", "nesterov", "ns_coefficients",
                                                   "eps", "ns_steps", "adjust_lr_fn"));
  Muon other(weights);
  other.load_torch_state_dict(state);
  EXPECT_EQ(other.torch_state_dict().param_groups[0].options, state.param_groups[0].options);
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
    EXPECT_THAT(error.what(), testing::HasSubstr("Muon: parameter layer.bias has sizes [4]"));
  }
  EXPECT_THROW(Muon({{"w", at::zeros({2, 2}).requires_grad_()}}, MuonOptions().adjust_lr_fn("none")), c10::ValueError);
}

}  // namespace
}  // namespace mezzo
