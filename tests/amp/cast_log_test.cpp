#include "mezzo/amp/cast_log.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "kernels/dtypes.h"
#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/custom_function.h"

// tests/python/amp/test_op_policy.py tests that the logs of PyTorch's lists and of a policy agree,
// op by op.

namespace mezzo {
namespace {

TEST(CastLogTest, ChangesNoNumber) {
  const auto weight = at::randn({4, 4}).requires_grad_(), x = at::randn({4, 4});
  const auto run = [&](CastLog* log) {
    const AutocastGuard autocast(at::kCPU, at::kHalf, AutocastOptions().log(log));
    const auto hidden = x.mm(weight).mm(weight).softmax(0);
    const auto gradient = torch::autograd::grad({at::mse_loss(hidden, x)}, {weight})[0];
    return std::pair(hidden, gradient);
  };
  CastLog log;
  const auto [hidden, gradient] = run(&log);
  const auto [plain_hidden, plain_gradient] = run(nullptr);
  EXPECT_TRUE(at::equal(hidden, plain_hidden));
  EXPECT_TRUE(at::equal(gradient, plain_gradient)) << "one cast of the weight gets both gradients";
  EXPECT_EQ(log.entries().size(), 2) << log.to_table();
}

TEST(CastLogTest, TellsKeptCastsFromNewOnes) {
  CastLog log;
  const auto weight = at::ones({2, 2}).requires_grad_(), x = at::ones({2, 2}, at::kHalf);
  const AutocastGuard autocast(at::kCPU, at::kHalf, AutocastOptions().log(&log));
  for (int i = 0; i < 3; ++i) {
    x.mm(weight);
  }
  weight.mm(weight);
  ASSERT_EQ(log.entries().size(), 1);
  EXPECT_EQ(log.entries()[0].count, 1);
  EXPECT_EQ(log.entries()[0].cached, 4);
  EXPECT_EQ(autocast_cache_size(), 1);
}

TEST(CastLogTest, HearsOfWrappedFunctionsAndKeepsTheirNumbers) {
  const auto product = autocast_function("test::logged", CastPolicy::kLowerPrecision, at::kCPU,
                                         [](const at::Tensor& a, const at::Tensor& b) { return a.mm(b); });
  CastLog log;
  const auto weight = at::ones({2, 2}).requires_grad_();
  const AutocastGuard autocast(at::kCPU, at::kHalf, AutocastOptions().log(&log));
  product(at::ones({2, 2}), weight);
  product(at::ones({2, 2}), weight);
  ASSERT_EQ(log.entries().size(), 1);
  EXPECT_EQ(log.entries()[0].op, "test::logged");
  EXPECT_EQ(log.entries()[0].count, 3);
  EXPECT_EQ(log.entries()[0].cached, 1);
}

TEST(CastLogTest, NamesEveryDtype) {
  for (int dtype = 0; dtype <= static_cast<int>(at::ScalarType::NumOptions); ++dtype) {
    EXPECT_NE(dtype_name(static_cast<at::ScalarType>(dtype)), "") << dtype;
  }
  EXPECT_EQ(dtype_name(at::kBFloat16), "bfloat16");
}

TEST(CastLogTest, LeavesPoliciesInForce) {
  const auto x = at::ones({2, 2});
  const auto policy = OpPolicy::preset("cpu").set("mm", CastPolicy::kFloat32);
  const AutocastGuard with_policy(at::kCPU, at::kHalf, AutocastOptions().policy(policy));
  CastLog inner;
  const AutocastGuard with_log(at::kCPU, at::kHalf, AutocastOptions().log(&inner));
  EXPECT_EQ(x.mm(x).scalar_type(), at::kFloat) << "of the enclosing guard";
  EXPECT_EQ(at::bmm(x.unsqueeze(0), x.unsqueeze(0)).scalar_type(), at::kHalf);
  EXPECT_EQ(inner.entries().size(), 1);
}

}  // namespace
}  // namespace mezzo
