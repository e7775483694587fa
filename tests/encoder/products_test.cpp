#include "encoder/cpu/products.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <random>

#include "encoder/cpu/packed_products.h"

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

TEST_F(ProductsTest, OfHalfTypesRoundToTheirDtypeFirstUnlessPacked) {
  for (const int64_t rows : {40, 300}) {  // LibTorch multiplies 40 rows on every CPU, and 300 on Intel's and ARM's
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      const auto a = at::randn({rows, 20}).to(dtype), b = at::randn({20, 280}).to(dtype);
      const auto right = at::mm(a.to(at::kDouble), b.to(at::kDouble));
      const bool is_packed = can_be_packed({at::empty({rows, 280}), {{a, b}}, false});
      const double unit_roundoff = is_packed ? 0 : dtype == at::kHalf ? 0x1p-11 : 0x1p-8;
      for (const int threads : {1, 2}) {
        SCOPED_TRACE(testing::Message() << rows << " rows of " << dtype << ", " << threads << " threads");
        at::set_num_threads(threads);
        const auto start = at::randn({rows, 280}), total = start.clone();
        Products products;
        const auto product = products.add(a, b, at::kFloat);
        products.add_to(total, a, b);
        products.compute();
        ASSERT_EQ(product.scalar_type(), at::kFloat);
        const auto bound = right.abs() * unit_roundoff + 20e-6;  // float32's rounding of 20 terms of order 1
        EXPECT_TRUE(((product - right).abs() <= bound).all().item<bool>());
        EXPECT_TRUE(((total - (start + right)).abs() <= bound).all().item<bool>());
        EXPECT_EQ(at::equal(product, product.to(dtype).to(at::kFloat)), !is_packed);
      }
    }
  }
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
