#include "text/data/graph_batch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <span>
#include <vector>

namespace mezzo::text {
namespace {

TEST(GraphBatchTest, FillsUpRowsAndSequences) {
  const std::vector<std::vector<int32_t>> ids{{5, 6, 7}, {8}};
  const std::vector<std::span<const int32_t>> texts(ids.begin(), ids.end());
  const auto batch = pack(texts, {.pad_id = 9});
  EXPECT_EQ(round_sequences(2), 2);
  EXPECT_EQ(round_sequences(3), 4);
  EXPECT_EQ(size_of(batch, 2).rows, 4);
  EXPECT_EQ(size_of(batch, 4).rows, 5) << "those without tokens have a row of filler";
  EXPECT_EQ(size_of(pack(texts, {.rows = 8}), 4).rows, 8);
  EXPECT_EQ(size_of(batch, 2).longest, 3);

  const auto tensors = to_graph_batch(batch, {.rows = 6, .longest = 32}, /*sequences=*/4, /*pad_id=*/9);
  ASSERT_EQ(tensors.size(), kGraphBatchTensors);
  const auto read = from_graph_batch(tensors.data(), /*longest=*/32);
  EXPECT_TRUE(at::equal(read.input_ids, at::tensor({5, 6, 7, 8, 9, 9}, at::kLong)));
  EXPECT_TRUE(at::equal(read.positions, at::tensor({0, 1, 2, 0, 0, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(read.sequence_table, at::tensor({0, 3, 3, 1, 4, 0, 4, 0}, at::kInt).view({4, 2})));
  EXPECT_EQ(read.size(), 4);
  EXPECT_EQ(read.max_seqlen, 32);
  EXPECT_FALSE(read.token_types.defined() || read.targets.defined() || read.window_counts.defined());
}

}  // namespace
}  // namespace mezzo::text
