#include "mezzo/amp/cpu_half_compute.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <limits>

namespace mezzo {
namespace {

class CpuHalfComputeTest : public testing::TestWithParam<at::ScalarType> {};

double epsilon(at::ScalarType dtype) { return dtype == at::kHalf ? 0x1p-10 : 0x1p-7; }

/// Rounds once: the error of each element is half an ulp of the exact product of the rounded
/// inputs, plus float32's own.
void expect_rounded_once(const at::Tensor& product, const at::Tensor& exact, at::ScalarType dtype) {
  ASSERT_EQ(product.scalar_type(), dtype);
  const auto error = (product.to(at::kDouble) - exact).abs();
  const auto bound = exact.abs() * (0.5 * epsilon(dtype)) + 1e-4;
  EXPECT_TRUE(error.le(bound).all().item<bool>()) << (error - bound).max();
}

TEST_P(CpuHalfComputeTest, RoundsAFloat32ProductOnce) {
  const CpuHalfCompute fast;
  const auto a = at::randn({33, 70}).to(GetParam()), b = at::randn({70, 21}).to(GetParam());
  const auto bias = at::randn({21}).to(GetParam());
  const auto x = a.to(at::kDouble), y = b.to(at::kDouble);
  expect_rounded_once(a.mm(b), x.mm(y), GetParam());
  expect_rounded_once(at::addmm(bias, a, b, 2, 3), bias.to(at::kDouble) * 2 + x.mm(y) * 3, GetParam());
  expect_rounded_once(at::linear(a, b.t(), bias), x.mm(y) + bias.to(at::kDouble), GetParam());
  const auto batch = at::randn({4, 9, 70}).to(GetParam()), sum = at::randn({4, 9, 21}).to(GetParam());
  const auto right = b.expand({4, 70, 21});
  expect_rounded_once(batch.bmm(right), batch.to(at::kDouble).bmm(right.to(at::kDouble)), GetParam());
  expect_rounded_once(at::baddbmm(sum, batch, right),
                      sum.to(at::kDouble) + batch.to(at::kDouble).bmm(right.to(at::kDouble)), GetParam());
}

TEST_P(CpuHalfComputeTest, OverflowsAsTheDtypeDoesNotAsTheAccumulatorWould) {
  const CpuHalfCompute fast;
  const auto large = at::full({1, 4}, GetParam() == at::kHalf ? 30000.0 : 2e38).to(GetParam());
  const auto ones = at::ones({4, 1}).to(GetParam());
  EXPECT_TRUE(large.mm(ones).isinf().item<bool>());
  const auto alternating = at::tensor({1.0F, -1.0F, 1.0F, -1.0F}).to(GetParam()).view({4, 1});
  EXPECT_EQ(large.mm(alternating).item<float>(), 0);
}

TEST_P(CpuHalfComputeTest, RunsForwardAndBackward) {
  const CpuHalfCompute fast;
  auto a = at::randn({8, 16}).to(GetParam()).requires_grad_(), b = at::randn({16, 4}).to(GetParam()).requires_grad_();
  const auto weight = at::randn({8, 4}).to(GetParam());
  const auto gradients = torch::autograd::grad({a.mm(b)}, {a, b}, {weight});
  expect_rounded_once(gradients[0], weight.to(at::kDouble).mm(b.detach().to(at::kDouble).t()), GetParam());
  expect_rounded_once(gradients[1], a.detach().to(at::kDouble).t().mm(weight.to(at::kDouble)), GetParam());
}

INSTANTIATE_TEST_SUITE_P(BothHalves, CpuHalfComputeTest, testing::Values(at::kHalf, at::kBFloat16));

TEST(CpuHalfComputeScopeTest, LeavesOtherDtypesErrorsAndTheBuiltInKernelsAsTheyWere) {
  const auto a = at::randn({5, 6}), b = at::randn({6, 7});
  const auto half = a.to(at::kHalf), half_b = b.to(at::kHalf);
  const auto before = a.mm(b), half_before = half.mm(half_b);
  {
    const CpuHalfCompute outer;
    { const CpuHalfCompute inner; }
    EXPECT_TRUE(at::equal(a.mm(b), before));
    EXPECT_THROW(half.mm(b), c10::Error) << "mixed dtypes stay an error";
    EXPECT_THROW(half.mm(half), c10::Error) << "mismatched shapes stay an error";
    expect_rounded_once(half.mm(half_b), half.to(at::kDouble).mm(half_b.to(at::kDouble)), at::kHalf);
  }
  EXPECT_TRUE(at::equal(half.mm(half_b), half_before));
}

}  // namespace
}  // namespace mezzo
