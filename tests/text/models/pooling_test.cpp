#include "text/models/pooling.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace mezzo::text {
namespace {

TEST(PoolingTest, MeansAreOfTheRowsOfEachSequenceWhereverTheyLie) {
  const auto rows = at::randn({9, 4}, at::kDouble);
  // Two rows of none, three tokens, padding, two tokens, filler; then a sequence without tokens.
  const auto table = at::tensor({2, 3, 6, 2, 8, 0}, at::kInt).view({3, 2});
  const encoder::SequenceLayout layout(table, rows.size(0), /*longest=*/3);
  const auto expected =
      at::stack({rows.narrow(0, 2, 3).mean(0), rows.narrow(0, 6, 2).mean(0), at::zeros({4}, at::kDouble)});
  EXPECT_TRUE(at::allclose(mean_of_sequences(rows, layout), expected, 0, 1e-15));
  EXPECT_EQ(mean_of_sequences(rows.to(at::kBFloat16), layout).scalar_type(), at::kFloat);
}

TEST(PoolingTest, RowsBehindTheLastWindowAreLeftOut) {
  const auto outputs = at::tensor({1.0f, 3.0f, 10.0f, 99.0f}).view({4, 1}).requires_grad_();
  const auto pooled = pool_windows(outputs, at::tensor({2, 1}, at::kLong), "mean");
  EXPECT_TRUE(at::equal(pooled, at::tensor({2.0f, 10.0f}).view({2, 1})));
  pooled.sum().backward();
  EXPECT_TRUE(at::equal(outputs.grad(), at::tensor({0.5f, 0.5f, 1.0f, 0.0f}).view({4, 1})));
}

}  // namespace
}  // namespace mezzo::text
