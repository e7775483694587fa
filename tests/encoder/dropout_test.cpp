#include "encoder/dropout.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include "encoder/cpu/block_ops.h"

namespace mezzo::encoder {
namespace {

class DropoutKernelTest : public testing::TestWithParam<at::ScalarType> {};

TEST_P(DropoutKernelTest, EqualsTheReferenceBitForBitAtEverySize) {
  for (const int64_t size : {0, 1, 3, 4, 63, 64, 65, 1000, 70001}) {
    for (const double p : {0.1, 0.5, 0.999}) {
      const RandomKey key{.seed = 0x123456789ABCDEF, .step = static_cast<uint32_t>(size), .site = 9};
      const auto x = at::randn({size}).to(GetParam());
      EXPECT_TRUE(at::equal(cpu::dropout(x, {p, key}), reference::dropout(x, {p, key}))) << size << " " << p;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllDtypes, DropoutKernelTest, testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

TEST(DropoutTest, IsAnOperatorOfTheDispatcher) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("mezzo::dropout", "");
  torch::jit::Stack stack{at::ones({64}), 0.5, 1, 2, 3, c10::IValue()};
  op.callBoxed(stack);
  EXPECT_TRUE(at::equal(stack.front().toTensor(), dropout(at::ones({64}), {0.5, {1, 2, 3}})));
}

TEST(DropoutTest, DoesNotDependOnTheNumberOfThreads) {
  const auto x = at::randn({300, 1000});
  const RandomKey key{.seed = 5, .step = 1, .site = 2};
  const int threads = at::get_num_threads();
  const auto many = dropout(x, {0.1, key});
  at::set_num_threads(1);
  EXPECT_TRUE(at::equal(many, dropout(x, {0.1, key})));
  at::set_num_threads(threads);
}

TEST(DropoutTest, DropsTheShareItShouldAndKeepsTheMean) {
  const auto out = dropout(at::ones({1000000}), {0.1, {.seed = 1, .step = 2, .site = 3}});
  // Five standard deviations of a mean of a million Bernoulli draws: 5 * sqrt(0.1 * 0.9 / 1e6).
  EXPECT_NEAR(out.eq(0).to(at::kDouble).mean().item<double>(), 0.1, 0.0015);
  EXPECT_TRUE(at::equal(std::get<0>(at::_unique(out)), at::tensor({0.0F, 1 / 0.9F})));
}

TEST(DropoutTest, MasksOfOtherSeedsStepsAndSitesAreIndependent) {
  const auto x = at::ones({100000});
  const RandomKey base{.seed = 1, .step = 2, .site = 3};
  const auto kept = dropout(x, {0.5, base}).gt(0);
  for (const RandomKey& other : {RandomKey{2, 2, 3}, RandomKey{1, 3, 3}, RandomKey{1, 2, 4}}) {
    const double agree = kept.eq(dropout(x, {0.5, other}).gt(0)).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(agree, 0.5, 0.008) << "five standard deviations: 5 * sqrt(0.25 / 1e5)";
  }
}

TEST(DropoutTest, GradientIsTheSameMaskToAnyOrder) {
  auto x = at::randn({7, 33}).requires_grad_();
  const RandomKey key{.seed = 4, .step = 0, .site = 1};
  const auto out = dropout(x, {0.3, key});
  const auto weight = at::randn({7, 33}).requires_grad_();
  const auto grad = torch::autograd::grad({out}, {x}, {weight}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  EXPECT_TRUE(at::equal(grad, dropout(weight, {0.3, key})));
  const auto second = torch::autograd::grad({grad.sum()}, {weight})[0];
  EXPECT_TRUE(at::equal(second, dropout(at::ones({7, 33}), {0.3, key})));
}

TEST(DropoutTest, AnOffsetOfTheStepGivesTheMasksOfTheirSum) {
  const auto ones = at::ones({7, 33});
  const auto drawn = dropout(ones, {0.3, {.seed = 4, .step = 9, .site = 1}});
  const DropoutSite with_offset{0.3, {.seed = 4, .step = 2, .site = 1}, at::scalar_tensor(7, at::kLong)};
  EXPECT_TRUE(at::equal(dropout(ones, with_offset), drawn));
  EXPECT_TRUE(at::equal(reference::dropout(ones, with_offset), drawn));
  auto x = at::ones({7, 33}).requires_grad_();
  dropout(x, with_offset).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), drawn));
  for (const auto& wrong : {at::ones({}), at::ones({1}, at::kLong)}) {
    EXPECT_THROW(dropout(ones, {0.3, {}, wrong}), c10::ValueError);
  }
}

TEST(DropoutTest, ZeroIsTheIdentityAndOneIsRefused) {
  const auto x = at::ones({3});
  EXPECT_TRUE(dropout(x, {0, RandomKey{}}).is_same(x));
  EXPECT_THROW(dropout(x, {1, RandomKey{}}), c10::ValueError);
  EXPECT_THROW(dropout(x, {-0.1, RandomKey{}}), c10::ValueError);
}

}  // namespace
}  // namespace mezzo::encoder
