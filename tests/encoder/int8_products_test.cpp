#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "encoder/int8_weights.h"
#include "encoder/products.h"
#include "kernels/cpu/simd/instruction_set.h"

namespace mezzo::encoder {
namespace {

class Int8ProductsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_int8_products(at::kCPU)) {
      GTEST_SKIP() << "no products of int8 for " << kernels::cpu::name_of(kernels::cpu::instruction_set());
    }
    at::manual_seed(0);
  }
  void TearDown() override { at::set_num_threads(threads_); }

  int64_t draw(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random_); }

 private:
  std::mt19937 random_{7};
  int threads_ = at::get_num_threads();
};

at::Tensor product(const at::Tensor& x, const at::Tensor& weight, at::ScalarType dtype) {
  Products products;
  const auto result = products.add(x, weight.t(), dtype);
  products.compute();
  return result;
}

/// Bits, of which a NaN is any.
void expect_same(const at::Tensor& mine, const at::Tensor& right) {
  ASSERT_EQ(mine.sizes(), right.sizes());
  ASSERT_EQ(mine.scalar_type(), right.scalar_type());
  EXPECT_TRUE(at::allclose(mine, right, /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true)) << mine << right;
}

TEST_F(Int8ProductsTest, AreTheirSpecificationToTheBit) {
  for (int round = 0; round < 150; ++round) {
    const auto dtype = std::vector{at::kFloat, at::kBFloat16, at::kHalf}[round % 3];
    const int64_t rows = draw(1, 150), depth = draw(1, 300), columns = draw(1, 150), more = draw(0, 1) * draw(1, 7);
    SCOPED_TRACE(testing::Message() << rows << " x " << depth << " x " << columns << ", " << dtype);
    const double shift = static_cast<double>(draw(-2, 2));  // so that rows may be of one sign
    const auto x = (at::randn({rows, depth + more}) + shift).to(dtype).narrow(1, draw(0, more), depth);
    const auto weight = int8_weight(at::randn({columns, depth}) * 0.05);
    expect_same(product(x, weight, at::kFloat), reference::int8_product(x, weight, at::kFloat));
    expect_same(product(x, weight, dtype), reference::int8_product(x, weight, dtype));
  }
}

TEST_F(Int8ProductsTest, SumsOfTheLargestIntegersAreExact) {
  const int64_t depth = kTooDeepForInt8 - 1;
  for (const double sign : {1.0, -1.0}) {
    const auto weight = int8_weight(at::full({3, depth}, sign));
    const auto x = at::full({2, depth}, 255.0);
    x[1].neg_();
    const auto right = at::tensor({sign, -sign}, at::kDouble).unsqueeze(1) * (255.0 * static_cast<double>(depth));
    expect_same(product(x, weight, at::kFloat), reference::int8_product(x, weight, at::kFloat));
    // float32 does not have the scale 1 / 127, and both products round.
    EXPECT_LE((product(x, weight, at::kFloat) / right - 1).abs().max().item<double>(), 4 * 0x1p-24);
  }
}

TEST_F(Int8ProductsTest, AreAsFarFromExactOnesAsTwoRoundingsAllow) {
  const auto x = at::randn({70, 384}), weight = at::randn({96, 384});
  const auto mine = product(x, int8_weight(weight), at::kFloat).to(at::kDouble);
  const auto step_of_x = (x.amax(1, true) - x.amin(1, true)).to(at::kDouble) / 255,
             step_of_weight = weight.abs().amax(1, true).to(at::kDouble) / 127;
  // x may be half a step off. At the upper end it may be a whole step off, if the least is not a whole
  // number of steps.
  const auto bound = at::mm(x.abs().sum(1, true).to(at::kDouble) / 2, step_of_weight.t()) +
                     at::mm(step_of_x, weight.abs().sum(1, true).to(at::kDouble).t()) +
                     384.0 / 2 * at::mm(step_of_x, step_of_weight.t());
  const auto error = (mine - at::mm(x.to(at::kDouble), weight.t().to(at::kDouble))).abs();
  EXPECT_LE((error - bound).max().item<double>(), 0);
  EXPECT_LE((error / bound).mean().item<double>(), 0.1);  // roundings go either way
}

TEST_F(Int8ProductsTest, RowsThatAreNoNumbersAreNaNAndOthersDoNotSeeThem) {
  auto x = at::randn({9, 50});
  x[1][3] = NAN;
  x[2][49] = INFINITY;
  x[3][0] = -INFINITY;
  x[4].fill_(0);
  x[5].mul_(1e-38);                         // no reciprocal
  x[6] = at::where(x[6] > 0, 3e38, -3e38);  // their difference is not finite
  x[7].abs_().neg_();
  const auto weight = int8_weight(at::randn({20, 50}));
  const auto result = product(x, weight, at::kFloat);
  expect_same(result, reference::int8_product(x, weight, at::kFloat));
  for (const int64_t row : {1, 2, 3, 6}) {
    EXPECT_TRUE(result[row].isnan().all().item<bool>()) << row;
  }
  for (const int64_t row : {4, 5}) {
    EXPECT_TRUE((result[row] == 0).all().item<bool>()) << row;
  }
  expect_same(result[8].unsqueeze(0), product(x.narrow(0, 8, 1), weight, at::kFloat));
}

TEST_F(Int8ProductsTest, AreTheSameForAnyNumberOfThreadsAndTogether) {
  const auto x = at::randn({333, 100}), other = at::randn({41, 64});
  const auto left = int8_weight(at::randn({130, 100})), right = int8_weight(at::randn({70, 100})),
             third = int8_weight(at::randn({9, 64})), plain = at::randn({100, 30});
  const auto alone = std::vector{product(x, left, at::kFloat), product(x, right, at::kFloat),
                                 product(other, third, at::kFloat), at::mm(x, plain)};
  for (const int threads : {1, 2, 5, 64}) {
    at::set_num_threads(threads);
    Products products;
    const std::vector together{products.add(x, left.t(), at::kFloat), products.add(x, right.t(), at::kFloat),
                               products.add(other, third.t(), at::kFloat), products.add(x, plain)};
    products.compute();
    for (size_t i = 0; i < 3; ++i) {
      expect_same(together[i], alone[i]);
    }
    EXPECT_TRUE(at::allclose(together[3], alone[3], 1e-4, 1e-4));  // float32, in another order
  }
}

TEST_F(Int8ProductsTest, AWeightKeepsItsPanelsAndOthersAreMadeForEachProduct) {
  for (const int64_t rows : {1, 20, 97, 300}) {
    const auto weight = int8_weight(at::randn({200, 50})), x = at::randn({rows, 50});
    const auto with_panels = product(x, weight, at::kFloat);
    expect_same(product(x, weight.clone(), at::kFloat), with_panels);
    // The panels are of all rows, so they do not serve a part of them.
    expect_same(product(x, weight.narrow(0, 30, 90), at::kFloat), with_panels.narrow(1, 30, 90));
    // The product reads the kept copy: a change in place does not reach it.
    weight.narrow(1, 0, 50).zero_();
    expect_same(product(x, weight, at::kFloat), with_panels);
  }
}

TEST_F(Int8ProductsTest, OfNoRowsAreNone) {
  const auto weight = int8_weight(at::randn({20, 50})), x = at::randn({7, 50});
  Products products;
  const auto none = products.add(x.narrow(0, 0, 0), weight.t()), some = products.add(x, weight.t());
  products.compute();
  EXPECT_EQ(none.sizes(), (std::vector<int64_t>{0, 20}));
  expect_same(some, reference::int8_product(x, weight, at::kFloat));
}

TEST(Int8WeightTest, IsToTheNearestStep) {
  const auto weight = at::randn({40, 33}) * at::logspace(-6, 6, 40).unsqueeze(1);
  const auto made = int8_weight(weight);
  ASSERT_EQ(made.sizes(), (std::vector<int64_t>{40, 33 + kInt8ScaleBytes}));
  const auto scales = int8_scales(made).unsqueeze(1), values = made.narrow(1, 0, 33);
  EXPECT_TRUE((values.abs().amax(1) == 127).all().item<bool>());
  // Half a step, and what float32 rounds.
  EXPECT_LE(((values * scales - weight).abs() / scales).max().item<double>(), 0.5 + 127 * 0x1p-22);
  EXPECT_TRUE((int8_weight(at::zeros({2, 3})) == 0).all().item<bool>());
}

TEST(Int8WeightTest, RefusesWhatHasNone) {
  auto damaged = at::randn({3, 4});
  damaged[1][2] = NAN;
  EXPECT_THROW(int8_weight(damaged), c10::ValueError);
  damaged[1][2] = -INFINITY;
  EXPECT_THROW(int8_weight(damaged), c10::ValueError);
  EXPECT_THROW(int8_weight(at::zeros({4})), c10::ValueError);
  EXPECT_THROW(int8_weight(at::zeros({1, kTooDeepForInt8})), c10::ValueError);
}

}  // namespace
}  // namespace mezzo::encoder
