#include "encoder/blocks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <tuple>
#include <vector>

#include "cuda/host_block.h"
#include "encoder/cpu/block_ops.h"
#include "encoder/cuda/block_ops.h"
#include "encoder/side_by_side.h"

// Whole blocks, whose nodes take the kernels for GPUs while these tests run.

namespace mezzo::encoder {
namespace {

constexpr int64_t kHidden = 64, kInner = 96, kHeads = 2;

/// While it lives, fused blocks on the CPU compute with the kernels for GPUs.
struct WithGpuKernels {
  WithGpuKernels() { set_block_ops(at::kCPU, &MEZZO_CUDA::kBlockOps); }
  ~WithGpuKernels() { set_block_ops(at::kCPU, &cpu::kBlockOps); }
};

SequenceLayoutPtr layout() {
  return c10::make_intrusive<SequenceLayout>(at::tensor({0, 5, 6, 23}, at::kInt), at::tensor({5, 1, 17}, at::kInt), 23,
                                             at::kCPU);
}

using Tensors = std::vector<at::Tensor>;
using Block = at::Tensor (*)(const Tensors& leaves);

at::Tensor embed(const Tensors& w) {
  const auto ids = at::arange(23).remainder(7), positions = at::arange(23).remainder(5), types = ids.remainder(2);
  return embedding_layer_norm(w[0], w[1], w[2], ids, positions, types, {w[9], w[10], 1e-5}, {0.2, {1, 2, 3}});
}

AttentionParams attention_params(const Tensors& w, bool only_first = false) {
  return {.query_key_value = {{w[0], w[1]}, {w[2], w[3]}, {w[4], w[5]}},
          .output = {w[6], w[7]},
          .norm = {w[9], w[10], 1e-5},
          .attention = {.num_heads = kHeads, .dropout = {0.1, {4, 5, 6}}, .only_first_queries = only_first},
          .output_dropout = {0.1, {4, 5, 7}}};
}

at::Tensor attend(const Tensors& w) { return attention_block(w[8], attention_params(w), layout()); }
at::Tensor attend_first(const Tensors& w) { return attention_block(w[8], attention_params(w, true), layout()); }

at::Tensor feed_forward(const Tensors& w) {
  return feed_forward_block(
      w[8], {{w[11], w[12]}, {w[13], w[1]}, Activation::kGelu, {w[9], w[10], 1e-5}, {0.1, {7, 8, 9}}}, {});
}

/// The columns of its query, key and value are one weight's.
at::Tensor pre_norm_attend_to(const Tensors& w,
                              const at::Tensor& norm_bias,
                              const at::Tensor& bias,
                              const at::Tensor& output_bias,
                              bool only_first) {
  return attention_block(w[8],
                         {.query_key_value = {{at::cat({w[0], w[2], w[4]}), bias}},
                          .output = {w[6], output_bias},
                          .norm = {w[9], norm_bias, 1e-5},
                          .attention = {.num_heads = kHeads,
                                        .dropout = {0.1, {4, 5, 6}},
                                        .window = 3,
                                        .only_first_queries = only_first,
                                        .rotary = rotary_table(17, kHidden / kHeads, 100)},
                          .output_dropout = {0.1, {4, 5, 7}},
                          .norm_first = true},
                         layout());
}

at::Tensor pre_norm_attend(const Tensors& w) { return pre_norm_attend_to(w, {}, {}, {}, false); }
at::Tensor pre_norm_attend_behind_a_biased_norm(const Tensors& w) {
  return pre_norm_attend_to(w, w[10], {}, {}, false);
}
at::Tensor pre_norm_attend_first(const Tensors& w) {
  return pre_norm_attend_to(w, w[7], at::cat({w[1], w[3], w[5]}), w[7], true);
}

at::Tensor pre_norm_feed_forward(const Tensors& w) {
  return feed_forward_block(w[8],
                            {.intermediate = {at::cat({w[11], w[11].flip(0)}), at::cat({w[12], w[12]})},
                             .output = {w[13], w[1]},
                             .activation = Activation::kGelu,
                             .norm = {w[9], w[10], 1e-5},
                             .dropout = {0.1, {7, 8, 10}},
                             .norm_first = true,
                             .is_gated = true,
                             .inner_dropout = {0.1, {7, 8, 9}}},
                            {});
}

at::Tensor pre_norm_feed_forward_without_linear_biases(const Tensors& w) {
  return feed_forward_block(w[8],
                            {.intermediate = {at::cat({w[11], w[11].flip(0)}), {}},
                             .output = {w[13], {}},
                             .activation = Activation::kRelu,
                             .norm = {w[9], w[10], 1e-5},
                             .dropout = {0.1, {7, 8, 10}},
                             .norm_first = true,
                             .is_gated = true,
                             .inner_dropout = {0.1, {7, 8, 9}}},
                            {});
}

enum class Weights { kApart, kSideBySide };

class CudaBlocksTest : public testing::TestWithParam<std::tuple<Block, Weights>> {};

TEST_P(CudaBlocksTest, GiveTheCpusOutputsAndGradients) {
  const auto& [block, weights] = GetParam();
  at::manual_seed(3);
  Tensors leaves;
  const auto add = [&](at::IntArrayRef sizes, double factor) {
    leaves.push_back((at::randn(sizes) * factor).requires_grad_());
  };
  for (int layer = 0; layer < 4; ++layer) {
    add({kHidden, kHidden}, 0.15);
    add({kHidden}, 0.3);
  }
  add({23, kHidden}, 1);
  add({kHidden}, 1);
  add({kHidden}, 1);
  add({kInner, kHidden}, 0.15);
  add({kInner}, 0.3);
  add({kHidden, kInner}, 0.15);
  if (block == embed) {
    leaves[1] = at::randn({8, kHidden}).requires_grad_();
  }
  if (weights == Weights::kSideBySide) {
    const auto parts = split_rows(at::cat({leaves[0], leaves[2], leaves[4]}).detach(), 3);
    for (size_t i = 0; i < parts.size(); ++i) {
      leaves[2 * i] = parts[i].requires_grad_();
    }
  }
  const auto run = [&, compute = block] {
    const auto output = compute(leaves);
    at::manual_seed(4);
    auto results = torch::autograd::grad({output}, leaves, {at::randn_like(output)}, /*retain_graph=*/{},
                                         /*create_graph=*/false, /*allow_unused=*/true);
    results.push_back(output.detach());
    return results;
  };
  const auto there = run();
  const int64_t before = kernels::MEZZO_CUDA::num_launches();
  const WithGpuKernels gpu;
  const auto here = run();
  EXPECT_GT(kernels::MEZZO_CUDA::num_launches(), before) << "the kernels for GPUs have run";
  for (size_t i = 0; i < here.size(); ++i) {
    ASSERT_EQ(here[i].defined(), there[i].defined()) << i;
    // float32 sums of some hundred terms of about 1, in another order.
    EXPECT_TRUE(!here[i].defined() || at::allclose(here[i], there[i], 1e-4, 1e-4))
        << i << ": " << (here[i] - there[i]).abs().max();
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         CudaBlocksTest,
                         testing::Combine(testing::Values(&embed,
                                                          &attend,
                                                          &attend_first,
                                                          &feed_forward,
                                                          &pre_norm_attend,
                                                          &pre_norm_attend_behind_a_biased_norm,
                                                          &pre_norm_attend_first,
                                                          &pre_norm_feed_forward,
                                                          &pre_norm_feed_forward_without_linear_biases),
                                          testing::Values(Weights::kApart)));
INSTANTIATE_TEST_SUITE_P(OfOneProduct,
                         CudaBlocksTest,
                         testing::Combine(testing::Values(&attend, &attend_first),
                                          testing::Values(Weights::kSideBySide)));

/// A weight that is not trained gets no gradient, and the others' are as if it were.
TEST(CudaBlocksOfFrozenWeightsTest, OneOfTheWeightsMayBeFrozen) {
  at::manual_seed(3);
  Tensors leaves;
  for (int layer = 0; layer < 4; ++layer) {
    leaves.push_back((at::randn({kHidden, kHidden}) * 0.15).requires_grad_());
    leaves.push_back(at::randn({kHidden}).requires_grad_());
  }
  leaves.push_back(at::randn({23, kHidden}).requires_grad_());
  leaves.push_back(at::ones({kHidden}));
  leaves.push_back(at::ones({kHidden}));
  const WithGpuKernels gpu;
  const auto gradient_of_query = [&] {
    return torch::autograd::grad({attend(leaves)}, {leaves[0]}, {at::ones({23, kHidden})})[0];
  };
  const auto before = gradient_of_query();
  leaves[2] = leaves[2].detach();
  EXPECT_TRUE(at::allclose(gradient_of_query(), before, 1e-5, 1e-6));
}

}  // namespace
}  // namespace mezzo::encoder
