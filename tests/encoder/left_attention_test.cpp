#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "encoder/cpu/block_ops.h"
#include "encoder/pre_norm_blocks.h"

/// Blocks whose kernels leave attention to the operator, as CUDA's do for long texts, against their compositions.

namespace mezzo::encoder {
namespace {

using Tensors = std::vector<at::Tensor>;
using Compute = std::function<at::Tensor(const at::Tensor& x, const Tensors& params)>;

constexpr int64_t kHeads = 2, kHidden = 16;

class LeftAttentionTest : public testing::TestWithParam<double> {
 protected:
  LeftAttentionTest() {
    at::manual_seed(3);
    ops_.leaves_attention = [](const PackedAttention& attention) {
      ++asked;
      return !attention.only_first_queries;
    };
    ops_.packed_attention = [](const PackedAttention&, at::Tensor*) -> at::Tensor {
      TORCH_CHECK(false, "the device's kernel is not to be used");
    };
    set_block_ops(at::kCPU, &ops_);
  }
  ~LeftAttentionTest() override { set_block_ops(at::kCPU, &cpu::kBlockOps); }

  static Tensors random_params(const std::vector<std::vector<int64_t>>& sizes) {
    Tensors params;
    for (const auto& size : sizes) {
      params.push_back(at::randn(size).mul_(size.size() == 2 ? 1 / std::sqrt(static_cast<double>(size[1])) : 0.5));
    }
    return params;
  }

  /// The output, and the gradients of x and the parameters; `times` backward of one graph.
  static Tensors results_of(const Compute& compute, const at::Tensor& x, const Tensors& params, int times = 1) {
    Tensors leaves{x.clone().requires_grad_()};
    for (const auto& param : params) leaves.push_back(param.clone().requires_grad_());
    const auto output = compute(leaves[0], {leaves.begin() + 1, leaves.end()});
    const auto grad = at::sin(at::arange(output.numel(), at::kFloat)).view(output.sizes());
    Tensors results;
    for (int i = 0; i < times; ++i) {
      results = torch::autograd::grad({output}, leaves, {grad}, /*retain_graph=*/true);
    }
    results.push_back(output.detach());
    return results;
  }

  /// Rounding alone differs.
  static void expect_same(const Compute& block, const Compute& composition, const Tensors& params) {
    const auto x = at::randn({kRows, kHidden});
    const auto expected = results_of(composition, x, params);
    for (const int times : {1, 2}) {
      const auto actual = results_of(block, x, params, times);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-4, 1e-5)) << i << " of " << times;
      }
    }
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::allclose(block(x, params), expected.back(), 1e-4, 1e-5));
  }

  static constexpr int64_t kRows = 3 + 20 + 7 + 2;  // of filler the last
  SequenceLayoutPtr layout() const {
    return c10::make_intrusive<SequenceLayout>(at::tensor({0, 3, 23, 30}, at::kInt), at::tensor({3, 20, 7}, at::kInt),
                                               kRows, at::kCPU);
  }

  /// Of a block that ends with its norm: weights and biases of its four products, and the norm's.
  static AttentionParams params_of(const Tensors& w) {
    const double p = GetParam();
    return {.query = {w[0], w[1]},
            .key = {w[2], w[3]},
            .value = {w[4], w[5]},
            .output = {w[6], w[7]},
            .norm = {w[8], w[9], 1e-5},
            .num_heads = kHeads,
            .weights_dropout = {p, {11, 2, 5}},
            .output_dropout = {p, {11, 2, 6}}};
  }
  static inline const std::vector<std::vector<int64_t>> kSizes = {
      {kHidden, kHidden}, {kHidden},          {kHidden, kHidden}, {kHidden}, {kHidden, kHidden},
      {kHidden},          {kHidden, kHidden}, {kHidden},          {kHidden}, {kHidden}};

  BlockOps ops_ = cpu::kBlockOps;
  static inline int asked = 0;
};

TEST_P(LeftAttentionTest, OfABlockThatEndsWithItsNorm) {
  asked = 0;
  expect_same(
      [&](const at::Tensor& x, const Tensors& w) { return attention_block(x, params_of(w), layout()); },
      [&](const at::Tensor& x, const Tensors& w) { return reference::attention_block(x, params_of(w), layout()); },
      random_params(kSizes));
  EXPECT_EQ(asked, 6) << "before the product, which adds biases where they are not left to a kernel, and after it";
}

/// Then one product makes queries, keys and values, and adds their biases.
TEST_P(LeftAttentionTest, OfWeightsThatLieSideBySide) {
  const int64_t h = kHidden;
  ops_.takes_columns = true;
  const auto params = random_params(kSizes);
  const auto results = [&](auto&& block, bool side_by_side) {
    Tensors w;
    for (const at::Tensor& param : params) {
      w.push_back(param.clone());
    }
    const auto whole = at::cat({w[0], w[2], w[4]});
    for (int64_t i = 0; i < 3 && side_by_side; ++i) {
      w[2 * i] = whole.narrow(0, i * h, h);
    }
    at::manual_seed(4);
    Tensors leaves{at::randn({kRows, h}).requires_grad_()};
    for (const at::Tensor& param : w) {
      leaves.push_back(param.detach().requires_grad_());
    }
    const auto output = block(leaves[0], params_of({leaves.begin() + 1, leaves.end()}), layout());
    const auto grad = at::sin(at::arange(output.numel(), at::kFloat)).view(output.sizes());
    auto all = torch::autograd::grad({output}, leaves, {grad});
    all.push_back(output.detach());
    return all;
  };
  const auto mine = results(attention_block, true), right = results(reference::attention_block, false);
  for (size_t i = 0; i < right.size(); ++i) {
    EXPECT_TRUE(at::allclose(mine[i], right[i], 1e-4, 1e-5)) << i;
  }
}

TEST_P(LeftAttentionTest, OfABlockThatBeginsWithItsNorm) {
  const double p = GetParam();
  const int64_t h = kHidden;
  const auto rotary = rotary_table(20, h / kHeads, 10000);
  asked = 0;
  for (const bool has_biases : {false, true}) {
    const auto params_of = [&](const Tensors& w) {
      static const at::Tensor kNone;
      const auto bias = [&](size_t i) -> const at::Tensor& { return has_biases ? w[i] : kNone; };
      return PreNormAttentionParams{.norm = {w[0], bias(3), 1e-5},
                                    .query_key_value = {w[1], bias(4)},
                                    .output = {w[2], bias(5)},
                                    .num_heads = kHeads,
                                    .positions = {rotary, 4},
                                    .only_first_rows = false,
                                    .weights_dropout = {p, {11, 2, 5}},
                                    .output_dropout = {p, {11, 2, 6}}};
    };
    auto params = random_params({{h}, {3 * h, h}, {h, h}});
    if (has_biases) {
      for (auto& bias : random_params({{h}, {3 * h}, {h}})) params.push_back(bias);
    }
    expect_same(
        [&](const at::Tensor& x, const Tensors& w) { return pre_norm_attention_block(x, params_of(w), layout()); },
        [&](const at::Tensor& x, const Tensors& w) {
          return reference::pre_norm_attention_block(x, params_of(w), layout());
        },
        params);
  }
  EXPECT_EQ(asked, 6);
}

/// As composed operations do: what attention keeps goes when its own backward is done.
TEST_P(LeftAttentionTest, KeepsNothingBehindBackward) {
  const int64_t h = kHidden;
  const auto params = random_params({{h, h}, {h}, {h, h}, {h}, {h, h}, {h}, {h, h}, {h}, {h}, {h}});
  const auto x = at::randn({kRows, h}).requires_grad_();
  const DropoutSite none{0, {11, 2, 5}};
  const AttentionParams block{.query = {params[0], params[1]},
                              .key = {params[2], params[3]},
                              .value = {params[4], params[5]},
                              .output = {params[6], params[7]},
                              .norm = {params[8], params[9], 1e-5},
                              .num_heads = kHeads,
                              .weights_dropout = none,
                              .output_dropout = none};
  const auto output = attention_block(x, block, layout());
  output.sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_ANY_THROW(output.sum().backward());
}

INSTANTIATE_TEST_SUITE_P(Dropouts, LeftAttentionTest, testing::Values(0, 0.3));

}  // namespace
}  // namespace mezzo::encoder
