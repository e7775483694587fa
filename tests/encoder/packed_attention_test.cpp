#include "encoder/packed_attention.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/philox.h"

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
  const auto out = packed_attention(q, k, v, layout, {.num_heads = kAttentionHeads});
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
      packed_attention(zeros, zeros, ones, layout, {.num_heads = kAttentionHeads, .dropout = {0.2, {1, 1, 1}}});
  const auto kept = out * 50 * 0.8;
  EXPECT_TRUE(at::allclose(kept, kept.round(), 0, 1e-4));
  EXPECT_NEAR(kept.mean().item<double>(), 40, 1.5) << "100 draws of 50: 3.7 standard deviations";
  EXPECT_GT(kept.std().item<double>(), 1);
}

/// One description, by LibTorch's own attention.
struct DescribedCase {
  const char* name;
  AttentionDescription attention;
};

std::vector<DescribedCase> described_cases(int64_t longest) {
  const auto rotary = rotary_table(longest, 16, 100);
  const DropoutSite dropout{0.3, {7, 2, 9}};
  return {{"plain", {.num_heads = 2}},
          {"dropout", {.num_heads = 2, .dropout = dropout}},
          {"window", {.num_heads = 2, .window = 5}},
          {"causal", {.num_heads = 2, .is_causal = true}},
          {"causal_window_dropout", {.num_heads = 2, .dropout = dropout, .window = 40, .is_causal = true}},
          {"first_queries", {.num_heads = 2, .dropout = dropout, .only_first_queries = true}},
          {"first_queries_window_rotary", {.num_heads = 2, .window = 7, .only_first_queries = true, .rotary = rotary}},
          {"scale", {.num_heads = 2, .scale = 0.6}},
          {"soft_cap", {.num_heads = 2, .scale = 2, .soft_cap = 1.5}},
          {"rotary", {.num_heads = 2, .rotary = rotary}},
          {"all",
           {.num_heads = 2,
            .dropout = dropout,
            .window = 530,
            .is_causal = true,
            .scale = 0.5,
            .soft_cap = 2,
            .rotary = rotary}}};
}

/// Which keys a sequence's queries see, and the weights of the kept ones after dropout: 0, or 1 / (1 - p).
at::Tensor seen_keys(int64_t length, const AttentionDescription& attention) {
  const auto behind = at::arange(length).unsqueeze(0) - at::arange(length).unsqueeze(1);
  return behind.abs()
      .le(attention.window.value_or(length))
      .logical_and(attention.is_causal ? behind.le(0) : at::ones_like(behind, at::kBool));
}

at::Tensor dropout_factors(int64_t first_row, int64_t length, int64_t head, const AttentionDescription& attention) {
  const auto& [p, key, offset] = attention.dropout;
  auto factors = at::empty({length, length}, at::kDouble);
  for (int64_t i = 0; i < length; ++i) {
    double* const row = factors[i].mutable_data_ptr<double>();
    for (int64_t j = 0; j < length; ++j) {
      const auto number = static_cast<uint32_t>((first_row + i) * attention.num_heads + head);
      const auto words =
          kernels::Philox::generate({static_cast<uint32_t>(j / 4), number, key.step, key.site}, key.seed);
      row[j] = words[static_cast<size_t>(j % 4)] < static_cast<uint32_t>(std::ldexp(p, 32)) ? 0 : 1 / (1 - p);
    }
  }
  return factors;
}

/// One sequence and head, [L, D] each, in float64.
at::Tensor expected_of_head(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            int64_t first_row,
                            int64_t head,
                            const AttentionDescription& attention) {
  const int64_t length = k.size(0), half = k.size(1) / 2;
  const auto turned = [&](const at::Tensor& x) {
    if (!attention.rotary.defined()) return x;
    const auto table = attention.rotary.narrow(0, 0, length).to(at::kDouble);
    const auto angles = at::complex(table.narrow(1, 0, half), table.narrow(1, half, half));
    const auto product = at::complex(x.narrow(1, 0, half), x.narrow(1, half, half)) * angles;
    return at::cat({at::real(product), at::imag(product)}, 1);
  };
  const double scale = attention.scale.value_or(1 / std::sqrt(static_cast<double>(k.size(1))));
  const auto seen = seen_keys(length, attention);
  if (attention.dropout.p == 0 && attention.soft_cap == 0) {
    return at::scaled_dot_product_attention(turned(q).view({1, 1, length, -1}), turned(k).view({1, 1, length, -1}),
                                            v.reshape({1, 1, length, -1}), seen, 0, false, scale)
        .view({length, -1});
  }
  auto scores = turned(q).mm(turned(k).t()) * scale;
  if (attention.soft_cap > 0) {
    scores = attention.soft_cap * at::tanh(scores / attention.soft_cap);
  }
  auto weights = scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity()).softmax(1);
  if (attention.dropout.p > 0) {
    weights = weights * dropout_factors(first_row, length, head, attention);
  }
  return weights.mm(v);
}

using Tensors = std::vector<at::Tensor>;

/// Output and gradients, in float64.
Tensors outcome(const std::function<at::Tensor(const Tensors&)>& attend, const Tensors& rows, at::ScalarType dtype) {
  Tensors leaves;
  for (const auto& each : rows) {
    leaves.push_back(each.to(dtype).requires_grad_());
  }
  const auto output = attend(leaves);
  const auto grad = at::sin(at::arange(output.numel(), at::kDouble)).view(output.sizes()).to(dtype);
  Tensors all = torch::autograd::grad({output}, leaves, {grad});
  all.push_back(output.detach());
  for (auto& each : all) {
    each = each.to(at::kDouble);
  }
  return all;
}

void expect_equals_its_formula(const std::vector<int64_t>& lengths, const std::vector<std::string>& names) {
  constexpr int64_t kHeads = 2, kSize = 16;
  const int64_t sequences = static_cast<int64_t>(lengths.size()),
                longest = *std::max_element(lengths.begin(), lengths.end());
  auto cu_seqlens = at::zeros({sequences + 1}, at::kInt);
  cu_seqlens.narrow(0, 1, sequences).copy_(at::tensor(lengths, at::kInt).cumsum(0));
  const int64_t rows = cu_seqlens[-1].item<int64_t>();
  const auto layout = c10::make_intrusive<SequenceLayout>(cu_seqlens, at::tensor(lengths, at::kInt), rows, at::kCPU);
  for (const auto& [name, attention] : described_cases(longest)) {
    if (!names.empty() && std::find(names.begin(), names.end(), name) == names.end()) {
      continue;
    }
    torch::manual_seed(1);
    const int64_t queries = attention.only_first_queries ? sequences : rows;
    const Tensors inputs{at::randn({queries, kHeads * kSize}), at::randn({rows, kHeads * kSize}),
                         at::randn({rows, kHeads * kSize})};
    const auto formula = [&, attention = attention](const Tensors& x) {
      auto query = x[0];
      if (attention.only_first_queries) {
        query = at::zeros({rows, x[0].size(1)}, x[0].options()).index_copy(0, layout->first_rows(), x[0]);
      }
      Tensors parts;
      for (const auto& [first, count] : layout->sequences()) {
        Tensors heads;
        for (int64_t head = 0; head < kHeads; ++head) {
          const auto part = [&, first = first, count = count](const at::Tensor& all) {
            return all.narrow(0, first, count).narrow(1, head * kSize, kSize);
          };
          heads.push_back(expected_of_head(part(query), part(x[1]), part(x[2]), first, head, attention));
        }
        parts.push_back(at::cat(heads, 1));
      }
      const auto all = at::cat(parts);
      return attention.only_first_queries ? all.index_select(0, layout->first_rows()) : all;
    };
    const auto by = [&, attention = attention](auto&& compute) {
      return [&, attention](const Tensors& x) { return compute(x[0], x[1], x[2], layout, attention); };
    };
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(testing::Message() << name << ", " << dtype << ", " << longest << " tokens");
      Tensors rounded;
      for (const auto& each : inputs) {
        rounded.push_back(each.to(dtype));
      }
      const auto right = outcome(formula, rounded, at::kDouble);
      const auto mine = outcome(by(packed_attention), rounded, dtype);
      // Half types round weights, scores' gradients and results once each. Of float32, the roundings of sums of up to
      // `longest` terms, 2^-24 each, average out.
      const double unit = dtype == at::kFloat  ? 0x1p-24 * (8 + std::sqrt(static_cast<double>(longest)))
                          : dtype == at::kHalf ? 0x1p-9
                                               : 0x1p-6;
      for (size_t i = 0; i < right.size(); ++i) {
        EXPECT_LE((mine[i] - right[i]).norm().item<double>(), unit * (right[i].norm().item<double>() + 1e-3))
            << i << " of the gradients of query, key and value, and the output";
      }
      if (dtype == at::kFloat) {
        const auto specified = outcome(by(reference::packed_attention), rounded, at::kDouble);
        for (size_t i = 0; i < right.size(); ++i) {
          // The table of angles is float32 in both.
          EXPECT_LE((specified[i] - right[i]).norm().item<double>(), 1e-12 * right[i].norm().item<double>() + 1e-13)
              << i << " of the specification";
        }
      }
    }
  }
}

TEST(PackedAttentionTest, IsLibTorchsAttentionForEachDescriptionOfShortTexts) {
  expect_equals_its_formula({3, 1, 33, 2, 70}, {});
}

/// Of several tiles of keys.
TEST(PackedAttentionTest, IsLibTorchsAttentionForEachDescriptionOfLongTexts) {
  expect_equals_its_formula({513, 1, 620}, {});
}

TEST(PackedAttentionTest, IsLibTorchsAttentionFor2100Tokens) {
  expect_equals_its_formula({2100}, {"plain", "first_queries_window_rotary"});
}

/// Scores of softmax's two ends: weights of 1 and of 0, gradients of 1e-8 and 65,536.
TEST(PackedAttentionTest, KeepsValuesThatHurt) {
  const int64_t length = 600;
  const auto layout = c10::make_intrusive<SequenceLayout>(at::tensor({0, 600}, at::kInt), at::tensor({600}, at::kInt),
                                                          length, at::kCPU);
  torch::manual_seed(2);
  const auto q = at::randn({length, 32}) * 40, k = at::randn({length, 32}) * 40, v = at::randn({length, 32});
  for (const double size : {1e-8, 65536.0}) {
    const auto run = [&](auto&& compute, at::ScalarType dtype) {
      const auto leaf = [&](const at::Tensor& x) { return x.to(dtype).requires_grad_(); };
      const Tensors x{leaf(q), leaf(k), leaf(v)};
      const auto output = compute(x[0], x[1], x[2], layout, AttentionDescription{.num_heads = 2});
      return torch::autograd::grad({output}, x, {at::ones_like(output) * size});
    };
    const auto mine = run(packed_attention, at::kFloat), right = run(reference::packed_attention, at::kDouble);
    for (size_t i = 0; i < right.size(); ++i) {
      EXPECT_TRUE(at::isfinite(mine[i]).all().item<bool>());
      // Scores near 10,000 are rounded by 5e-4, and so are weights.
      EXPECT_LE((mine[i] - right[i]).norm().item<double>(), 2e-3 * right[i].norm().item<double>() + 1e-3 * size) << i;
    }
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
    const auto out =
        attention(q, k, v, layout, AttentionDescription{.num_heads = 2, .dropout = {p, {1, 2, 3}}}).narrow(0, 0, 38);
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
