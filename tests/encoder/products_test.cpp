#include "encoder/products.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "encoder/cpu/widened_product.h"

namespace mezzo::encoder::cpu {
namespace {

class ProductsTest : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(0); }
  void TearDown() override { at::set_num_threads(threads_); }

  int64_t draw(int64_t most) { return std::uniform_int_distribution<int64_t>(1, most)(random_); }

  /// Either way round in memory.
  at::Tensor matrix(int64_t rows, int64_t columns) {
    return draw(2) == 1 ? at::randn({rows, columns}) : at::randn({columns, rows}).t();
  }

 private:
  std::mt19937 random_{3};
  int threads_ = at::get_num_threads();
};

/// Within float32's rounding of `depth` terms of order 1.
void expect_close(const at::Tensor& mine, const at::Tensor& right, int64_t depth) {
  ASSERT_EQ(mine.sizes(), right.sizes());
  EXPECT_LE((mine.to(at::kDouble) - right).abs().max().item<double>(), 1e-6 * static_cast<double>(depth));
}

/// BLAS counts them in 32 bits.
TEST_F(ProductsTest, RefuseTwoBillionRowsOrColumns) {
  const auto one = at::ones({1, 1}), many = one.expand({int64_t{1} << 31, 1}), to = at::empty({1, 1});
  const auto expect_refused = [](const auto& compute) {
    EXPECT_THAT(compute, testing::ThrowsMessage<c10::ValueError>(
                             testing::HasSubstr("has 2^31 rows or columns, or more; use a smaller batch")));
  };
  encoder::Products products;
  expect_refused([&] { products.add(many, one); });
  expect_refused([&] { products.assign(to, many.t(), many); });
  expect_refused([&] { products.add_to(to, one, many.t()); });
}

TEST_F(ProductsTest, AreThoseOfFloat64ForAnyNumberOfShapesAndThreads) {
  for (int round = 0; round < 60; ++round) {
    at::set_num_threads(static_cast<int>(draw(4)));
    SCOPED_TRACE(testing::Message() << "round " << round << ", " << at::get_num_threads() << " threads");
    struct ExpectedSum {
      at::Tensor mine, right;
      int64_t depth;
    };
    Products products;
    std::vector<ExpectedSum> expected;
    const int64_t most = round % 2 == 0 ? 40 : 700;  // too small to be split, and not
    for (int64_t i = draw(4); i > 0; --i) {
      const int64_t m = draw(most), k = draw(90), n = draw(most);
      const auto a = matrix(m, k), b = matrix(k, n);
      const auto right = at::mm(a.to(at::kDouble), b.to(at::kDouble));
      if (draw(2) == 1) {
        expected.push_back({products.add(a, b), right, k});
      } else {
        const auto total = at::randn({m, n}), c = matrix(m, 2 * k), d = matrix(2 * k, n);
        expected.push_back(
            {total, total.to(at::kDouble) + right + at::mm(c.to(at::kDouble), d.to(at::kDouble)), 3 * k});
        products.add_to(total, a, b);
        products.add_to(total, c, d);
      }
    }
    products.compute();
    for (const auto& [mine, right, depth] : expected) {
      expect_close(mine, right, depth);
    }
  }
}

/// Factors of half types, in both layouts, and the error that their float32 product may have.
struct HalfFactors {
  at::Tensor a, b, product, bound;
};

HalfFactors half_factors(int64_t rows, at::ScalarType dtype, bool transposes) {
  HalfFactors factors{at::randn({rows, 21}).to(dtype), at::randn({21, 280}).to(dtype), {}, {}};
  factors.a[0].fill_(300), factors.b.select(1, 0).fill_(300);  // their product overflows float16
  if (transposes) {
    factors.a = factors.a.t().contiguous().t(), factors.b = factors.b.t().contiguous().t();
  }
  const auto a = factors.a.to(at::kDouble), b = factors.b.to(at::kDouble);
  factors.product = at::mm(a, b);
  factors.bound =
      21 * 0x1p-24 * (at::mm(a.abs(), b.abs()) + 8);  // float32 rounds 21 sums, one of which starts at up to 8
  return factors;
}

void expect_within(const at::Tensor& mine, const at::Tensor& right, const at::Tensor& bound) {
  ASSERT_EQ(mine.scalar_type(), at::kFloat);
  EXPECT_LE(((mine - right).abs() / bound).max().item<double>(), 1);
}

TEST_F(ProductsTest, OfHalfTypesAsFloat32AreNotRoundedToTheirDtype) {
  for (const int64_t rows : {1, 40, 300}) {
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      for (const int threads : {1, 2}) {
        const auto [a, b, right, bound] = half_factors(rows, dtype, /*transposes=*/threads == 2);
        SCOPED_TRACE(testing::Message() << rows << " rows of " << dtype << ", " << threads << " threads");
        at::set_num_threads(threads);
        const auto start = at::randn({rows, 280}), total = start.clone();
        Products products;
        const auto product = products.add(a, b, at::kFloat);
        products.add_to(total, a, b);
        products.compute();
        expect_within(product, right, bound);
        expect_within(total, start + right, bound);
      }
    }
  }
}

TEST_F(ProductsTest, OfHalfTypesAsFloat32AreNotRoundedByLibraries) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const bool transposes : {false, true}) {
      SCOPED_TRACE(testing::Message() << dtype << ", transposed " << transposes);
      const auto [a, b, right, bound] = half_factors(40, dtype, transposes);
      const auto start = at::randn({40, 300});
      for (const auto product :
           {widened_product, +[](at::Tensor& output, const at::Tensor& x, const at::Tensor& y, bool adds) {
              if (!widened_product_of_mkl(output, x, y, adds)) widened_product(output, x, y, adds);
            }}) {
        for (const bool adds : {false, true}) {
          const auto all = start.clone();
          auto part = all.narrow(1, 10, 280);  // as threads share a product
          product(part, a, b, adds);
          expect_within(part, right + start.narrow(1, 10, 280) * static_cast<int64_t>(adds), bound);
          EXPECT_TRUE(at::equal(all.narrow(1, 0, 10), start.narrow(1, 0, 10)));
          EXPECT_TRUE(at::equal(all.narrow(1, 290, 10), start.narrow(1, 290, 10)));
        }
      }
    }
  }
}

TEST_F(ProductsTest, OfExpandedHalfTypesAsFloat32AreThoseOfWholeOnes) {
  const auto a = at::randn({40, 1}).to(at::kBFloat16).expand({40, 21}),
             b = at::randn({1, 280}).to(at::kBFloat16).expand({21, 280});
  auto output = at::empty({40, 280}), right = output.clone();
  EXPECT_FALSE(widened_product_of_mkl(output, a, b, false));
  widened_product(output, a, b, false);
  widened_product(right, a.contiguous(), b.contiguous(), false);
  EXPECT_TRUE(at::allclose(output, right));
}

TEST_F(ProductsTest, RepeatToTheBit) {
  at::set_num_threads(2);
  const auto x = at::randn({640, 96}), weight = at::randn({384, 96}), grad = at::randn({640, 384});
  const auto compute = [&] {
    const auto total = at::ones({640, 96});
    Products products;
    const auto forward = products.add(x, weight.t()), of_weight = products.add(grad.t(), x);
    products.add_to(total, grad, weight);
    products.compute();
    return std::vector<at::Tensor>{total, forward, of_weight};
  };
  const auto first = compute();
  for (int i = 0; i < 5; ++i) {
    const auto again = compute();
    for (size_t t = 0; t < first.size(); ++t) {
      EXPECT_TRUE(at::equal(again[t], first[t])) << t;
    }
  }
}

TEST_F(ProductsTest, AreNothingForAutogradToSee) {
  at::set_num_threads(2);
  const auto x = at::randn({300, 8}), weight = at::randn({280, 8}).requires_grad_();
  Products products;
  const auto y = products.add(x, weight.t());
  products.compute();
  EXPECT_FALSE(y.requires_grad());
}

}  // namespace
}  // namespace mezzo::encoder::cpu
