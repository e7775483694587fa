#include "mezzo/text/data/packed_batch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "mezzo/text/data/batching.h"
#include "text/scratch_folder.h"

namespace mezzo::text {
namespace {

using Ids = std::vector<int32_t>;

TEST(PackedBatchTest, PutsTokenTypesBesideTheIdsAndZeroWhereNoTextIs) {
  const Ids first = {2, 7, 3, 8, 3}, second = {2, 3, 3}, types = {0, 0, 0, 1, 1}, other_types = {0, 0, 1};
  const std::vector<std::span<const int32_t>> texts = {first, second}, token_types = {types, other_types};
  const auto packed = pack(texts, {.rows = 8}, token_types);
  EXPECT_TRUE(at::equal(packed.token_types, at::tensor({0, 0, 0, 1, 1, 0, 0, 1}, at::kLong))) << packed.token_types;
  const auto padded = pack(texts, {.pad_to = 6}, token_types).to(at::kCPU);
  EXPECT_TRUE(at::equal(padded.token_types, at::tensor({0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0}, at::kLong)))
      << padded.token_types;
  EXPECT_FALSE(pack(texts, {}).token_types.defined()) << "all 0";
}

TEST(PackedBatchTest, CollatesTheTokenTypesOfTheTextsThatAreAskedFor) {
  const TokenizedTexts texts{.ids = {{2, 7, 3, 8, 3}, {2, 9, 3}, {2, 3, 3}},
                             .token_types = {{0, 0, 0, 1, 1}, {1, 1, 1}, {0, 0, 1}}};
  const std::vector<int64_t> indices = {2, 0};
  const auto types = [&](Batching batching) {
    return collate(texts, indices, batching, /*max_length=*/6, /*pad_id=*/0).token_types;
  };
  const auto packed = types(Batching::kPacked);
  EXPECT_TRUE(at::equal(packed.narrow(0, 0, 8), at::tensor({0, 0, 1, 0, 0, 0, 1, 1}, at::kLong))) << packed;
  EXPECT_EQ(packed.narrow(0, 8, packed.size(0) - 8).count_nonzero().item<int64_t>(), 0) << packed;
  const auto dynamic = at::tensor({0, 0, 1, 0, 0, 0, 0, 0, 1, 1}, at::kLong);
  EXPECT_TRUE(at::equal(types(Batching::kDynamic), dynamic)) << types(Batching::kDynamic);
  EXPECT_TRUE(at::equal(types(Batching::kGrouped), dynamic)) << types(Batching::kGrouped);
  const auto padded = at::tensor({0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0}, at::kLong);
  EXPECT_TRUE(at::equal(types(Batching::kPadded), padded)) << types(Batching::kPadded);
}

TEST(PackedBatchTest, FillsAtMostASixteenthOfTheRows) {
  for (const auto& [tokens, rows] :
       std::vector<std::pair<size_t, int64_t>>{{1, 1}, {31, 31}, {33, 34}, {500, 512}, {1025, 1056}}) {
    const TokenizedTexts texts{.ids = {Ids(tokens, 2)}, .token_types = {}};
    const std::vector<int64_t> first = {0};
    EXPECT_EQ(collate(texts, first, Batching::kPacked, /*max_length=*/0, /*pad_id=*/0).input_ids.size(0), rows);
    EXPECT_EQ(count_rows(texts, first, Batching::kPacked, /*max_length=*/0), rows);
  }
}

TEST(PackedBatchTest, RefusesTokenTypesOfOtherTexts) {
  const ScratchFolder none;
  const Ids ids = {2, 3}, types = {0, 0, 1};
  const std::vector<std::span<const int32_t>> texts = {ids, ids}, one = {ids}, longer = {ids, types};
  EXPECT_EQ(value_error([&] { pack(texts, {}, one); }, none), "pack: 2 texts but token types of 1");
  EXPECT_EQ(value_error([&] { pack(texts, {}, longer); }, none), "pack: text 1 has 2 tokens but 3 token types");
}

}  // namespace
}  // namespace mezzo::text
