#include "encoder/packed_attention.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

namespace mezzo::encoder {
namespace {

constexpr int64_t kAttentionHeads = 2, kHeadSize = 5, kAttentionHidden = kAttentionHeads * kHeadSize;

/// Attention of one sequence by its formula, in float64.
at::Tensor attention_of_one(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  std::vector<at::Tensor> heads;
  for (int64_t head = 0; head < kAttentionHeads; ++head) {
    const auto slice = [&](const at::Tensor& x) { return x.narrow(1, head * kHeadSize, kHeadSize); };
    heads.push_back((slice(q).mm(slice(k).t()) / std::sqrt(double{kHeadSize})).softmax(1).mm(slice(v)));
  }
  return at::cat(heads, 1);
}

TEST(PackedAttentionTest, EachSequenceAttendsToItselfAlone) {
  // Three sequences of 4, 1 and 6 tokens; the second has two rows of padding;
  // three rows of filler follow.
  const auto cu_seqlens = at::tensor({0, 4, 7, 13}, at::kInt), seqlens = at::tensor({4, 1, 6}, at::kInt);
  const int64_t rows = 16;
  const auto make = [&] { return at::randn({rows, kAttentionHidden}, at::kDouble).requires_grad_(); };
  const auto q = make(), k = make(), v = make();
  const auto layout = c10::make_intrusive<SequenceLayout>(cu_seqlens, seqlens, rows, at::kCPU);
  const auto out = packed_attention(q, k, v, kAttentionHeads, layout, /*dropout=*/{});
  ASSERT_EQ(out.sizes(), (at::IntArrayRef{rows, kAttentionHidden}));

  at::Tensor mine = at::zeros({}, at::kDouble), expected = at::zeros({}, at::kDouble);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 4}, {4, 1}, {7, 6}}) {
    const auto part = [first = first, count = count](const at::Tensor& x) { return x.narrow(0, first, count); };
    const auto one = attention_of_one(part(q), part(k), part(v));
    EXPECT_TRUE(at::allclose(part(out), one, 1e-12, 1e-12)) << first;
    mine = mine + part(out).pow(2).sum();
    expected = expected + one.pow(2).sum();
  }
  const auto gradients = torch::autograd::grad({mine}, {q, k, v});
  const auto expected_gradients = torch::autograd::grad({expected}, {q, k, v});
  for (size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_TRUE(at::allclose(gradients[i], expected_gradients[i], 1e-12, 1e-12)) << i;
  }
}

TEST(PackedAttentionTest, DropsAttentionWeightsInTraining) {
  const auto cu_seqlens = at::tensor({0, 50}, at::kInt), seqlens = at::tensor({50}, at::kInt);
  const auto layout = c10::make_intrusive<SequenceLayout>(cu_seqlens, seqlens, 50, at::kCPU);
  const auto zeros = at::zeros({50, kAttentionHidden}), ones = at::ones({50, kAttentionHidden});
  // Equal scores: every weight is 1 / 50, so an output says how many of the 50 keys
  // were kept, times 1 / 0.8.
  const auto out =
      packed_attention(zeros, zeros, ones, kAttentionHeads, layout, {.p = 0.2, .key = {.seed = 1, .step = 1, .site = 1}});
  const auto kept = out * 50 * 0.8;
  EXPECT_TRUE(at::allclose(kept, kept.round(), 0, 1e-4));
  EXPECT_NEAR(kept.mean().item<double>(), 40, 1.5) << "100 draws of 50: 3.7 standard deviations";
  EXPECT_GT(kept.std().item<double>(), 1);
}

/// Flash attention, which CUDA devices have, draws from the device's generator.
TEST(PackedAttentionTest, LeavesTheRandomNumbersOfItsUserAlone) {
  std::vector<at::Device> devices{at::kCPU};
  if (at::hasCUDA()) {
    devices.emplace_back(at::kCUDA, 0);
  }
  for (const at::Device& device : devices) {
    const auto cu_seqlens = at::tensor({0, 5}, at::kInt), seqlens = at::tensor({5}, at::kInt);
    const auto layout = c10::make_intrusive<SequenceLayout>(cu_seqlens, seqlens, 5, device);
    const auto x = at::ones({5, 128}, at::TensorOptions(device).dtype(at::kHalf));
    const auto draw = [&](bool attends) {
      torch::manual_seed(3);
      at::rand({2}, device);  // the generator has been drawn from
      if (attends) {
        packed_attention(x, x, x, 2, layout, {.p = 0.5, .key = {.seed = 1, .step = 1, .site = 1}});
      }
      return at::rand({8}, device);
    };
    EXPECT_TRUE(at::equal(draw(true), draw(false))) << device;
  }
}

TEST(PackedAttentionTest, OnCudaEqualsTheReferenceAndRepeatsItsMasks) {
  if (!at::hasCUDA()) {
    GTEST_SKIP() << "no CUDA device";
  }
  const auto cu_seqlens = at::tensor({0, 4, 5, 38}, at::kInt), seqlens = at::tensor({4, 1, 33}, at::kInt);
  const auto layout = c10::make_intrusive<SequenceLayout>(cu_seqlens, seqlens, 40, at::kCUDA);
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kHalf);
  const auto make = [&] { return at::randn({40, 128}, options).requires_grad_(); };
  const auto q = make(), k = make(), v = make();
  const auto run = [&](auto attention, double p) {
    const auto out = attention(q, k, v, 2, layout, DropoutSite{p, {1, 2, 3}}, TokenPositions{}, RelativePositions{})
                         .narrow(0, 0, 38);
    auto result = torch::autograd::grad({out.to(at::kFloat).pow(2).sum()}, {q, k, v});
    result.push_back(out.detach());
    return result;
  };
  const auto mine = run(packed_attention, 0), right = run(reference::packed_attention, 0);
  for (size_t i = 0; i < mine.size(); ++i) {
    EXPECT_TRUE(at::allclose(mine[i], right[i], 1e-2, 1e-2)) << i << ": ten units in the last place of 2^-11";
  }
  const auto first = run(packed_attention, 0.5), second = run(packed_attention, 0.5);
  EXPECT_TRUE(at::equal(first.back(), second.back()));
  EXPECT_FALSE(at::equal(first.back(), mine.back()));
}

TEST(SequenceLayoutTest, RefusesRowsThatOverlapStandOutOfOrderOrDoNotExist) {
  struct LayoutCase {
    std::vector<int32_t> cu_seqlens, seqlens;
    const char* culprit;
  };
  const auto limit = std::numeric_limits<int32_t>::max();
  const std::vector<LayoutCase> cases = {
      {{0, 4, 8}, {5, 4}, "sequence 0 has 5 tokens in rows 0 to 3"},            // reaches into the next
      {{4, 0, 8}, {4, 4}, "sequence 0 has 4 tokens in rows 4 to -1"},           // out of order
      {{0, 6, 4, 8}, {2, 2, 2}, "sequence 1 has 2 tokens in rows 6 to 3"},      //
      {{0, 4, 9}, {4, 4}, "sequence 1 has 4 tokens in rows 4 to 8 of 8"},       // owns rows that do not exist
      {{-4, 4, 8}, {4, 4}, "sequence 0 has 4 tokens in rows -4 to 3"},          //
      {{0, 4, 8}, {4, 0}, "sequence 1 has 0 tokens"},                           //
      {{0, limit, limit}, {limit, limit}, "sequence 0 has 2147483647 tokens"},  // sums that overflow
      {{0, 4}, {4, 4}, "2 rows in cu_seqlens for 2 sequences"},
  };
  const auto layout = [](const LayoutCase& c) {
    SequenceLayout(at::tensor(c.cu_seqlens), at::tensor(c.seqlens), 8, at::kCPU);
  };
  for (const LayoutCase& bad : cases) {
    EXPECT_THAT([&] { layout(bad); }, testing::ThrowsMessage<c10::ValueError>(testing::HasSubstr(bad.culprit)));
  }
  EXPECT_NO_THROW(layout({{0, 4, 7}, {2, 3}, ""}));
}

}  // namespace
}  // namespace mezzo::encoder
