#include "encoder/cpu/packed_products.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "encoder/cpu/product_blocks.h"
#include "encoder/cpu/simd/kernels.h"
#include "encoder/expected_product.h"
#include "encoder/packed_weights.h"
#include "kernels/cpu/simd/instruction_set.h"

namespace mezzo::encoder::cpu {
namespace {

class PackedProductsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (simd_kernels().products == nullptr) {
      GTEST_SKIP() << "no products of our own for " << kernels::cpu::name_of(kernels::cpu::instruction_set());
    }
    at::manual_seed(0);
  }
  void TearDown() override { at::set_num_threads(threads_); }

  int64_t draw(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random_); }

  /// Either way round in memory, at times part of a larger matrix and not aligned.
  at::Tensor matrix(int64_t rows, int64_t columns, at::ScalarType dtype) {
    const int64_t more = draw(0, 1) * draw(1, 7), first = draw(0, more);
    if (draw(0, 1) == 0) {
      return at::randn({rows, columns + more}).to(dtype).narrow(1, first, columns);
    }
    return at::randn({columns, rows + more}).to(dtype).t().narrow(0, first, rows);
  }

  ProductSum random_sum(at::ScalarType dtype, int64_t most_rows, int64_t most_columns, int64_t most_depth) {
    ProductSum sum{at::randn({draw(1, most_rows), draw(1, most_columns)}).to(dtype), {}, draw(0, 1) == 0};
    for (int64_t i = draw(1, 3); i > 0; --i) {
      const int64_t depth = draw(1, most_depth);
      sum.terms.emplace_back(matrix(sum.output.size(0), depth, dtype), matrix(depth, sum.output.size(1), dtype));
    }
    return sum;
  }

 private:
  std::mt19937 random_{7};
  int threads_ = at::get_num_threads();
};

TEST_F(PackedProductsTest, AreThoseOfFloat64RoundedOnce) {
  for (int round = 0; round < 120; ++round) {
    at::set_num_threads(static_cast<int>(draw(1, 4)));
    const auto dtype = std::array{at::kFloat, at::kBFloat16, at::kHalf}.at(round % 3);
    std::vector<ProductSum> sums;
    std::vector<Expected> right;
    for (int64_t i = draw(1, 3); i > 0; --i) {
      sums.push_back(random_sum(dtype, 200, 150, round % 4 == 0 ? 900 : 40));
      right.push_back(expected(sums.back()));
    }
    compute_packed(sums);
    for (size_t i = 0; i < sums.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "round " << round << ", " << sums[i].output.sizes() << " of " << dtype);
      expect_expected(sums[i].output, right[i]);
    }
  }
}

TEST_F(PackedProductsTest, DoNotDependOnTheNumberOfThreads) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<ProductSum> sums;
    for (int i = 0; i < 3; ++i) {
      sums.push_back(random_sum(dtype, 700, 100, 500));
    }
    std::vector<at::Tensor> starts, first;
    for (const auto& sum : sums) {
      starts.push_back(sum.output.clone());
    }
    for (const int threads : {1, 2, 3, 4}) {
      at::set_num_threads(threads);
      for (size_t i = 0; i < sums.size(); ++i) {
        sums[i].output.copy_(starts[i]);
      }
      compute_packed(sums);
      for (size_t i = 0; i < sums.size(); ++i) {
        if (threads == 1) {
          first.push_back(sums[i].output.clone());
        }
        EXPECT_TRUE(at::equal(sums[i].output, first[i])) << threads << " threads, sum " << i;
      }
    }
  }
}

TEST_F(PackedProductsTest, OfNoDepthAreZerosOrWhatWasThere) {
  for (const auto dtype : {at::kFloat, at::kHalf}) {
    const auto a = at::empty({70, 0}, dtype), b = at::empty({0, 20}, dtype), start = at::randn({70, 20}).to(dtype);
    const std::vector<ProductSum> sums{{at::full({70, 20}, NAN, dtype), {{a, b}}, false},
                                       {start.clone(), {{a, b}}, true}};
    compute_packed(sums);
    EXPECT_TRUE(at::equal(sums[0].output, at::zeros({70, 20}, dtype)));
    EXPECT_TRUE(at::equal(sums[1].output, start));
  }
}

TEST_F(PackedProductsTest, MatricesThatShareMemoryButNotShapeAreDifferent) {
  const auto a = at::randn({64, 32}), square = at::randn({32, 32});
  const std::vector<ProductSum> sums{{at::empty({64, 32}), {{a, square}}, false},
                                     {at::empty({64, 32}), {{a, square.t()}}, false},
                                     {at::empty({64, 16}), {{a, square.narrow(1, 0, 16)}}, false},
                                     {at::empty({64, 32}), {{a, square}}, false}};
  compute_packed(sums);
  for (const auto& sum : sums) {
    expect_expected(sum.output, expected(sum));
  }
}

TEST_F(PackedProductsTest, BlocksCoverEachOutputOnce) {
  const auto& kernels = *simd_kernels().products;
  for (const int threads : {1, 2, 3, 6, 16, 64}) {
    at::set_num_threads(threads);
    for (int round = 0; round < 40; ++round) {
      const std::vector<ProductSum> sums{random_sum(at::kFloat, 700, 900, 50),
                                         random_sum(at::kFloat, 10, 2000, 50),
                                         {at::empty({0, 5}), {{at::empty({0, 3}), at::empty({3, 5})}}, false}};
      std::vector<at::Tensor> covered;
      for (const auto& sum : sums) {
        covered.push_back(at::zeros(sum.output.sizes()));
      }
      const auto tasks = product_blocks(sums, kernels.tile_rows, kernels.panel_columns);
      ASSERT_EQ(std::ssize(tasks.ends), threads);
      ASSERT_EQ(tasks.ends.back(), std::ssize(tasks.blocks));
      for (const auto& [sum, begin, end, first_column, columns] : tasks.blocks) {
        EXPECT_LE(end - begin, kLargestRowBlock);
        EXPECT_EQ(first_column % kernels.panel_columns, 0);
        covered[sum].narrow(0, begin, end - begin).narrow(1, first_column, columns) += 1;
      }
      for (const auto& each : covered) {
        EXPECT_TRUE((each == 1).all().item<bool>()) << threads << " threads, " << each.sizes();
      }
    }
  }
}

TEST_F(PackedProductsTest, WithManyThreadsNoneReadsAWholeMatrix) {
  at::set_num_threads(64);
  const ProductSum sum{at::empty({640, 3072}), {{at::empty({640, 768}), at::empty({768, 3072})}}, false};
  const auto tasks = product_blocks({&sum, 1}, /*tile_rows=*/8, /*panel_columns=*/48);
  for (const auto& block : tasks.blocks) {
    EXPECT_LE(block.columns, 3072 / 8);
  }
}

TEST_F(PackedProductsTest, OfPackedWeightsAreThoseOfTheWeights) {
  if (!can_be_packed({at::empty({64, 8}), {{at::empty({64, 8}), at::empty({8, 8})}}, false})) {
    GTEST_SKIP() << "LibTorch's products are the faster ones here";
  }
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t rows : {1, 5, 64, 96, 97, 200}) {
      const auto weight = at::randn({50, 37}), packed = packed_weight(weight, dtype),
                 a = at::randn({rows, 37}).to(dtype);
      ASSERT_TRUE(is_packed_weight(packed.t()));
      EXPECT_TRUE(at::equal(packed, weight.to(dtype)));
      // A part of it and the weight itself on the right have no panels.
      const auto few = packed.narrow(0, 0, 20), wide = at::randn({rows, 50}).to(dtype);
      const std::vector<ProductSum> sums{{at::empty({rows, 50}, dtype), {{a, packed.t()}}, false},
                                         {at::empty({rows, 20}, dtype), {{a, few.t()}}, false},
                                         {at::empty({rows, 37}, dtype), {{wide, packed}}, false}};
      EXPECT_TRUE(can_be_packed(sums[0]));
      EXPECT_EQ(can_be_packed(sums[1]), rows >= 64);
      EXPECT_EQ(can_be_packed(sums[2]), rows >= 64);
      const std::vector<ProductSum> right{{at::empty({rows, 50}, dtype), {{a, packed.clone().t()}}, false},
                                          {at::empty({rows, 20}, dtype), {{a, few.clone().t()}}, false},
                                          {at::empty({rows, 37}, dtype), {{wide, packed.clone()}}, false}};
      at::set_num_threads(1);
      compute_packed(right);
      for (const int threads : {1, 2, 3, 64}) {
        at::set_num_threads(threads);
        compute_packed(sums);
        for (size_t i = 0; i < sums.size(); ++i) {
          EXPECT_TRUE(at::equal(sums[i].output, right[i].output)) << dtype << ", " << rows << " rows, sum " << i;
        }
      }
      expect_expected(sums[0].output, expected(sums[0]));
    }
  }
}

TEST_F(PackedProductsTest, APackedWeightOutlivesTheTensorItIsMadeOf) {
  auto weight = at::randn({50, 37});
  const auto right = weight.clone();
  auto packed = packed_weight(weight, at::kFloat);
  EXPECT_EQ(packed.const_data_ptr(), weight.const_data_ptr());
  const auto view = packed.t();
  packed = weight = at::Tensor();
  const ProductSum sum{at::empty({70, 50}), {{at::randn({70, 37}), view}}, false},
      other{at::empty({70, 50}), {{sum.terms[0].first, right.t()}}, false};
  compute_packed({&sum, 1});
  compute_packed({&other, 1});
  EXPECT_TRUE(at::equal(sum.output, other.output));
}

TEST_F(PackedProductsTest, SomeAreLeftToLibTorch) {
  const auto sum = [](int64_t rows, at::ScalarType dtype) {
    return ProductSum{at::empty({rows, 8}, dtype), {{at::empty({rows, 8}, dtype), at::empty({8, 8}, dtype)}}, false};
  };
  EXPECT_TRUE(can_be_packed(sum(64, at::kHalf)));
  EXPECT_FALSE(can_be_packed(sum(63, at::kHalf)));  // few rows
  EXPECT_FALSE(can_be_packed(sum(64, at::kDouble)));
  auto strided = sum(64, at::kHalf);
  strided.terms[0].first = at::empty({64, 16}, at::kHalf).slice(1, 0, 16, 2);
  EXPECT_FALSE(can_be_packed(strided));
}

}  // namespace
}  // namespace mezzo::encoder::cpu
