#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/host_block.h"
#include "encoder/cpu/block_ops.h"
#include "encoder/cuda/block_ops.h"
#include "encoder/dropout.h"
#include "encoder/packed_attention.h"

namespace mezzo::encoder {
namespace {

/// One batch of sequences of `lengths`, each followed by `padding` rows, and
/// `filler` rows behind them all.
SequenceLayoutPtr layout_of(const std::vector<int32_t>& lengths, int32_t padding, int64_t filler) {
  std::vector<int32_t> begins{0};
  for (const int32_t length : lengths) {
    begins.push_back(begins.back() + length + padding);
  }
  return c10::make_intrusive<SequenceLayout>(at::tensor(begins, at::kInt), at::tensor(lengths, at::kInt),
                                             begins.back() + filler, at::kCPU);
}

int64_t rows_of(const SequenceLayoutPtr& layout, int64_t filler) {
  const Sequence& last = layout->sequences().back();
  return last.first_row + last.num_tokens + filler;
}

/// 1 in the rows that sequences own, 0 elsewhere; [T, 1].
at::Tensor owned(const std::vector<Sequence>& sequences, int64_t rows) {
  const auto mask = at::zeros({rows, 1}, at::kDouble);
  for (const Sequence& sequence : sequences) {
    mask.narrow(0, sequence.first_row, sequence.num_tokens).fill_(1);
  }
  return mask;
}

/// |a - b| in units of b's largest element.
double distance(const at::Tensor& a, const at::Tensor& b) {
  if (!a.isfinite().all().item<bool>()) {
    return std::numeric_limits<double>::infinity();
  }
  const auto right = b.to(at::kDouble);
  return ((a.to(at::kDouble) - right).abs().max() / right.abs().max().clamp_min(1e-30)).item<double>();
}

/// A weight's relative error is its score's absolute error. Scores of up to 20 are sums of up to
/// 256 terms in float32: 64 of its units in the last place. Half a unit of a half type is as large.
double tolerance_of(at::ScalarType dtype) {
  const double of_float = 64.0 / (1 << 23);
  return of_float + (dtype == at::kBFloat16 ? 1.0 / 256 : dtype == at::kHalf ? 1.0 / 2048 : 0);
}

struct Problem {
  AttentionArguments attention;
  at::Tensor grad;
};

Problem problem_of(const SequenceLayoutPtr& layout,
                   int64_t rows,
                   int64_t heads,
                   int64_t head_size,
                   at::ScalarType dtype,
                   double dropout,
                   double size = 1) {
  const auto matrix = [&](double factor) { return (at::randn({rows, heads * head_size}) * factor).to(dtype); };
  const auto bias = [&] { return at::randn({heads * head_size}).to(dtype); };
  return {{matrix(size),
           matrix(size),
           matrix(1),
           {bias(), bias(), bias()},
           layout,
           {.num_heads = heads, .dropout = {dropout, {.seed = 0xFEDCBA9876543210, .step = 7, .site = 3}}}},
          matrix(1)};
}

using Named = std::vector<std::pair<const char*, at::Tensor>>;

/// The defined tensors.
Named named(const at::Tensor& output, const AttentionGradients& grads) {
  Named all{{"output", output},
            {"query", grads.query},
            {"key", grads.key},
            {"value", grads.value},
            {"query bias", grads.biases.query},
            {"key bias", grads.biases.key},
            {"value bias", grads.biases.value},
            {"position keys", grads.relative_key},
            {"position queries", grads.relative_query}};
  std::erase_if(all, [](const auto& each) { return !each.second.defined(); });
  return all;
}

/// With its gradients, and log_sum_exp, which is 0 in rows outside the sequences.
Named run(const Problem& problem,
          decltype(cpu::packed_attention) forward,
          decltype(cpu::packed_attention_backward) backward) {
  const auto& a = problem.attention;
  at::Tensor log_sum_exp;
  const auto output = forward(a, &log_sum_exp);
  auto result = named(output, backward(a, output, log_sum_exp, problem.grad));
  if (!a.description.only_first_queries) {
    auto is_owned = at::zeros({output.size(0), 1}, at::kBool);
    for (int64_t b = 0; b < a.layout->size(); ++b) {
      const auto sequence = a.layout->table()[b];
      is_owned.narrow(0, sequence[0].item<int64_t>(), sequence[1].item<int64_t>()).fill_(true);
    }
    log_sum_exp = at::where(is_owned, log_sum_exp, 0);
  }
  result.emplace_back("log_sum_exp", log_sum_exp);
  return result;
}

Named run_on_gpu(const Problem& problem) {
  return run(problem, MEZZO_CUDA::packed_attention, MEZZO_CUDA::packed_attention_backward);
}

Named run_on_cpu(const Problem& problem) { return run(problem, cpu::packed_attention, cpu::packed_attention_backward); }

/// By the specification, in float64 or another dtype.
Named run_reference(const Problem& problem, at::ScalarType dtype = at::kDouble) {
  const auto& a = problem.attention;
  const auto leaf = [dtype](const at::Tensor& tensor) { return tensor.to(dtype).requires_grad_(); };
  const auto query = leaf(a.query), key = leaf(a.key), value = leaf(a.value);
  const bool has_biases = a.biases.query.defined();
  const auto none = at::zeros({query.size(1)}, query.options());
  const auto query_bias = leaf(has_biases ? a.biases.query : none), key_bias = leaf(has_biases ? a.biases.key : none),
             value_bias = leaf(has_biases ? a.biases.value : none);
  auto description = a.description;
  std::vector<at::Tensor> leaves{query, key, value, query_bias, key_bias, value_bias};
  for (at::Tensor* table : {&description.relative.key, &description.relative.query}) {
    if (table->defined()) {
      leaves.push_back(*table = leaf(*table));
    }
  }
  auto output =
      reference::packed_attention(query + query_bias, key + key_bias, value + value_bias, a.layout, description);
  if (!description.only_first_queries) {
    output = output * owned(a.layout->sequences(), key.size(0));
  }
  const auto grads = torch::autograd::grad({output}, leaves, {problem.grad.to(output.scalar_type())});
  const auto& relative = description.relative;
  const auto biases = has_biases ? AttentionBiases{grads[3], grads[4], grads[5]} : AttentionBiases();
  return named(output.detach(), {grads[0],
                                 grads[1],
                                 grads[2],
                                 biases,
                                 {},
                                 relative.key.defined() ? grads[6] : at::Tensor(),
                                 relative.query.defined() ? grads.back() : at::Tensor()});
}

/// By the specification in the problem's dtype, if that is a half type: it rounds what kernels round, factors of
/// tensor cores' products.
Named run_rounded(const Problem& problem) {
  const auto dtype = problem.attention.query.scalar_type();
  return dtype == at::kFloat ? Named() : run_reference(problem, dtype);
}

bool has(const Named& results, std::string_view name) {
  return std::ranges::any_of(results, [&](const auto& each) { return each.first == name; });
}

/// @param keys_are_placed  whether their places have a part in scores
/// @param rounded  by the specification in the dtype of the kernels. They round the factors of their products, and
///   outputs before a query's sum of weights times their gradients is taken from them. So they may be four times as
///   far from `right` as `rounded` is.
void expect_near(const Named& mine,
                 const Named& right,
                 double tolerance,
                 at::ScalarType dtype,
                 bool keys_are_placed = false,
                 const Named& rounded = {}) {
  ASSERT_LE(mine.size(), right.size() + 1) << "and log_sum_exp";
  const bool is_relative = has(right, "position keys") || has(right, "position queries");
  for (size_t i = 0; i < right.size(); ++i) {
    const std::string name = mine[i].first;
    ASSERT_EQ(name, right[i].first);
    // It shifts all scores by the same number, which softmax ignores. Its gradient is the rounding
    // error of many terms. This does not hold if each key's place turns it, or if it is multiplied by
    // a position.
    if (name == "key bias" && !keys_are_placed) {
      const double of_rounding = rounded.empty() ? 0 : rounded[i].second.abs().max().item<double>();
      // All queries add the rounding errors of their outputs.
      EXPECT_LT(mine[i].second.abs().max().item<double>(), std::max(1e-3, 8 * of_rounding)) << name;
      continue;
    }
    // In float32 whatever the inputs are. Of a bias's sum over all tokens
    // the greater part may cancel. With positions, queries and keys are first rounded with their
    // biases. Their gradients are rounded before the sum.
    const bool is_sum = name.find("bias") != std::string::npos || name == "log_sum_exp";
    const double of_sum = 4 * tolerance_of(is_relative ? dtype : at::kFloat);
    const double of_rounding =
        rounded.empty() || name == "log_sum_exp" ? 0 : distance(rounded[i].second, right[i].second);
    const double of_terms = rounded.empty() || name == "log_sum_exp" ? 0 : 2 * tolerance;  // the factors' rounding
    EXPECT_LT(distance(mine[i].second, right[i].second),
              std::max({is_sum ? of_sum : tolerance, is_sum ? of_terms : 0, 4 * of_rounding}))
        << name << " of " << dtype;
  }
}

/// Against the specification, and in float32 against the CPU: half types are rounded elsewhere there.
void expect_right(const Problem& problem, double tolerance, bool keys_are_placed = false) {
  const auto dtype = problem.attention.query.scalar_type();
  const auto mine = run_on_gpu(problem);
  expect_near(mine, run_reference(problem), tolerance, dtype, keys_are_placed, run_rounded(problem));
  if (dtype == at::kFloat) {
    expect_near(mine, run_on_cpu(problem), 2 * tolerance, dtype, keys_are_placed);
  }
}

const std::vector<int32_t> kLengths = {17, 1, 40, 16, 33, 15, 2};

class CudaAttentionTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(1); }
};

TEST_P(CudaAttentionTest, EqualsTheSpecificationForAllHeadSizes) {
  const auto layout = layout_of(kLengths, /*padding=*/3, /*filler=*/5);
  struct Case {
    int64_t head_size;
    double dropout;
  };
  for (const auto& [head_size, dropout] : {Case{5, 0.3}, Case{16, 0.3}, Case{26, 0}, Case{32, 0.3}, Case{64, 0},
                                           Case{64, 0.3}, Case{80, 0.3}, Case{96, 0}, Case{128, 0.1}, Case{256, 0.1}}) {
    SCOPED_TRACE(testing::Message() << "heads of " << head_size << ", dropout " << dropout);
    expect_right(problem_of(layout, rows_of(layout, 3 + 5), head_size > 64 ? 1 : 2, head_size, GetParam(), dropout),
                 tolerance_of(GetParam()));
  }
}

TEST_P(CudaAttentionTest, EqualsTheSpecificationForAllLengths) {
  for (const auto& lengths : {std::vector<int32_t>{127, 1, 128, 16}, {129, 17, 300, 15, 2}}) {
    const auto layout = layout_of(lengths, /*padding=*/2, /*filler=*/4);
    expect_right(problem_of(layout, rows_of(layout, 2 + 4), 1, 64, GetParam(), 0.1), tolerance_of(GetParam()));
  }
}

TEST_P(CudaAttentionTest, EqualsTheSpecificationForLongTexts) {
  const auto layout = layout_of({2100, 3}, /*padding=*/0, /*filler=*/1);
  const bool is_whole = GetParam() == at::kBFloat16;  // else a part of the tiles, for the time that this test takes
  auto problem = problem_of(layout, 2104, 1, is_whole ? 16 : 80, GetParam(), 0.1);
  problem.attention.description.is_causal = true;
  if (!is_whole) {
    problem.attention.description.window = 70;
    problem.attention.description.rotary = rotary_table(2100, 80, 100);
  }
  expect_right(problem, tolerance_of(GetParam()), /*keys_are_placed=*/!is_whole);
}

/// Without dropout LibTorch has the same attention, in float64.
TEST_P(CudaAttentionTest, EqualsScaledDotProductAttention) {
  const auto layout = layout_of({17, 1, 70, 33}, /*padding=*/0, /*filler=*/0);
  struct Case {
    int64_t head_size;
    bool is_causal;
    std::optional<int64_t> window;
    std::optional<double> scale;
  };
  for (const auto& [head_size, is_causal, window, scale] :
       {Case{16, true, {}, {}}, Case{64, true, 20, 0.3}, Case{80, false, 3, {}}, Case{64, false, {}, 0.05}}) {
    SCOPED_TRACE(testing::Message() << "heads of " << head_size << ", causal " << is_causal);
    auto problem = problem_of(layout, 121, 2, head_size, GetParam(), 0);
    auto& a = problem.attention;
    a.biases = {};
    a.description.is_causal = is_causal;
    a.description.window = window;
    a.description.scale = scale;
    const auto leaf = [](const at::Tensor& tensor) { return tensor.to(at::kDouble).requires_grad_(); };
    const auto query = leaf(a.query), key = leaf(a.key), value = leaf(a.value);
    std::vector<at::Tensor> outputs;
    for (const auto& [first, count] : layout->sequences()) {
      const auto of = [&, begin = first, rows = count](const at::Tensor& matrix) {
        return matrix.narrow(0, begin, rows).unflatten(1, {2, -1}).transpose(0, 1).unsqueeze(0);
      };
      const auto places = at::arange(count, at::kLong), distances = places.unsqueeze(1) - places;
      auto is_seen = distances.abs() <= window.value_or(count);
      is_seen = is_causal ? is_seen.logical_and(distances >= 0) : is_seen;
      outputs.push_back(at::scaled_dot_product_attention(of(query), of(key), of(value), is_seen, 0.0, false, scale)
                            .squeeze(0)
                            .transpose(0, 1)
                            .flatten(1));
    }
    const auto output = at::cat(outputs);
    const auto grads = torch::autograd::grad({output}, {query, key, value}, {problem.grad.to(at::kDouble)});
    expect_near(run_on_gpu(problem), named(output.detach(), {grads[0], grads[1], grads[2], {}}),
                tolerance_of(GetParam()), GetParam(), false, run_rounded(problem));
  }
}

TEST_P(CudaAttentionTest, WithASoftCapEqualsTheSpecification) {
  const auto layout = layout_of({17, 1, 70, 33}, /*padding=*/1, /*filler=*/2);
  for (const int64_t head_size : {26, 80}) {
    auto problem = problem_of(layout, rows_of(layout, 3), 2, head_size, GetParam(), 0.2, /*size=*/2);
    problem.attention.description.soft_cap = 3;  // scores of a few units: all of them are capped
    problem.attention.description.is_causal = head_size == 80;
    problem.attention.description.rotary = rotary_table(70, head_size, 100);
    expect_right(problem, tolerance_of(GetParam()), /*keys_are_placed=*/true);
  }
}

/// Values are rows of the unit matrix: an output is zero where its weight is dropped; so is a gradient of values.
TEST_P(CudaAttentionTest, DropsTheSameWeightsAsTheCpuAtEveryLength) {
  for (const auto& [length, head_size] : {std::pair<int32_t, int64_t>(20, 32), {70, 80}, {200, 256}}) {
    for (const bool only_first : {false, true}) {
      const auto layout = layout_of({length, 5}, 0, 0);
      auto problem = problem_of(layout, length + 5, 1, head_size, GetParam(), 0.4);
      auto& a = problem.attention;
      a.biases = {};
      a.value = at::eye(length + 5, head_size).to(GetParam());
      problem.grad = a.value.clone();
      if (only_first) {
        a.description.only_first_queries = true;
        a.query = a.query.index_select(0, layout->first_rows());
        problem.grad = problem.grad.index_select(0, layout->first_rows());
      }
      const auto mine = run_on_gpu(problem), right = run_on_cpu(problem);
      for (const size_t i : {0, 3}) {
        const auto is_zero = mine[i].second.eq(0);
        EXPECT_TRUE(at::equal(is_zero, right[i].second.eq(0))) << mine[i].first << " of " << length << " tokens";
        EXPECT_LT(is_zero.narrow(0, 0, 1).narrow(1, 0, length).count_nonzero().item<int64_t>(), length);
      }
    }
  }
}

/// Of the sequences' first tokens.
Problem only_first(Problem problem) {
  problem.attention.description.only_first_queries = true;
  problem.attention.query = problem.attention.query.index_select(0, problem.attention.layout->first_rows());
  problem.grad = problem.grad.index_select(0, problem.attention.layout->first_rows());
  return problem;
}

/// As layers of ModernBERT have it: turned by places, to a window, without biases, of first queries alone.
TEST_P(CudaAttentionTest, WithPositionsEqualsTheSpecificationAndTheCpus) {
  const auto layout = layout_of({17, 1, 75, 3, 40}, /*padding=*/3, /*filler=*/5);
  const int64_t rows = rows_of(layout, 3 + 5);
  struct Case {
    int64_t head_size;
    bool turns;
    std::optional<int64_t> window;
    bool is_first, has_biases;
    double dropout;
  };
  for (const auto& [head_size, turns, window, is_first, has_biases, dropout] :
       {Case{6, true, 1, false, true, 0.3}, Case{64, true, 5, false, false, 0.3}, Case{64, true, 33, false, true, 0},
        Case{64, true, {}, true, false, 0.3}, Case{10, false, 20, true, true, 0}, Case{128, true, 7, false, true, 0.3},
        Case{36, true, 1000, false, false, 0.3}, Case{32, false, 5, false, true, 0.3},
        Case{160, true, 7, true, true, 0.3}}) {
    SCOPED_TRACE(testing::Message() << "heads of " << head_size << ", window " << window.value_or(-1) << ", turned "
                                    << turns << ", first alone " << is_first << ", dropout " << dropout);
    auto problem = problem_of(layout, rows, head_size > 64 ? 1 : 2, head_size, GetParam(), dropout);
    auto& attention = problem.attention;
    attention.description.rotary = turns ? rotary_table(80, head_size, 100) : at::Tensor();
    attention.description.window = window;
    if (!has_biases) {
      attention.biases = {};
    }
    expect_right(is_first ? only_first(problem) : problem, tolerance_of(GetParam()), turns);
  }
}

/// For up to `longest` tokens: of the nearest distances one row each, then one for 16 at a time; beyond, the outermost.
RelativePositions relative_of(int64_t longest, int64_t num_rows, int64_t hidden, at::ScalarType dtype) {
  const auto distances = at::arange(1 - longest, longest, at::kLong);
  const auto near = distances.clamp(-num_rows / 4, num_rows / 4), far = distances - near;
  const auto table = [&] { return at::randn({num_rows, hidden}).to(dtype); };
  return {table(), table(), (near + far.div(16, "trunc") + num_rows / 2).clamp(0, num_rows - 1)};
}

/// In the half types gradients of scores are rounded before they meet tables, and rows of gradients twice.
double tolerance_of_relative(at::ScalarType dtype) { return 2 * tolerance_of(dtype); }

/// As layers of DeBERTa have it. Keys of one row of a table begin and end within tiles, and go over several.
TEST_P(CudaAttentionTest, WithRelativePositionsEqualsTheSpecificationAndTheCpus) {
  struct Case {
    int64_t head_size, num_rows;
    bool has_key, has_query, has_biases, of_columns;
    double dropout;
  };
  const auto layout = layout_of({17, 1, 75, 3, 40}, /*padding=*/3, /*filler=*/5);
  const int64_t rows = rows_of(layout, 3 + 5);
  for (const auto& [head_size, num_rows, has_key, has_query, has_biases, of_columns, dropout] :
       {Case{5, 30, true, true, true, false, 0.3}, Case{64, 30, true, true, true, true, 0},
        Case{64, 8, true, false, true, false, 0.3}, Case{64, 8, false, true, false, true, 0.3},
        Case{33, 600, true, true, false, false, 0}, Case{130, 24, true, true, true, false, 0.1}}) {
    for (const bool is_first : {false, true}) {
      SCOPED_TRACE(testing::Message() << "heads of " << head_size << ", " << num_rows << " rows, keys " << has_key
                                      << ", queries " << has_query << ", first alone " << is_first);
      const int64_t hidden = 2 * head_size;
      auto problem = problem_of(layout, rows, 2, head_size, GetParam(), dropout);
      auto& attention = problem.attention;
      attention.description.relative = relative_of(/*longest=*/140, num_rows, hidden, GetParam());
      attention.description.relative.key = has_key ? attention.description.relative.key : at::Tensor();
      attention.description.relative.query = has_query ? attention.description.relative.query : at::Tensor();
      if (!has_biases) {
        attention.biases = {};
      }
      if (of_columns) {
        const auto all = at::cat({attention.query, attention.key, attention.value}, 1);
        attention.query = all.narrow(1, 0, hidden);
        attention.key = all.narrow(1, hidden, hidden);
        attention.value = all.narrow(1, 2 * hidden, hidden);
      }
      if (is_first) {
        problem = only_first(problem);
      }
      expect_right(problem, tolerance_of_relative(GetParam()), has_query);
    }
  }
}

TEST_P(CudaAttentionTest, RelativePositionsHaveARowForEachDistanceOfLongTexts) {
  constexpr int64_t kLongest = 150, kRows = 2 * kLongest - 1;
  const auto layout = layout_of({kLongest, 7}, 0, 0);
  auto problem = problem_of(layout, kLongest + 7, 1, 8, GetParam(), 0.1);
  problem.attention.description.relative = {at::randn({kRows, 8}).to(GetParam()), at::randn({kRows, 8}).to(GetParam()),
                                            at::arange(kRows, at::kLong)};
  expect_right(problem, tolerance_of_relative(GetParam()), true);
  expect_right(only_first(problem), tolerance_of_relative(GetParam()), true);
}

TEST_P(CudaAttentionTest, RowsOfRelativePositionsMustBeThereAndInOrder) {
  const auto layout = layout_of({20}, 0, 0);
  auto problem = problem_of(layout, 20, 1, 8, GetParam(), 0);
  const auto right = relative_of(20, 12, 8, GetParam());
  for (const auto& [place, row] : {std::pair(0, -1), {38, 12}, {20, 1}}) {
    problem.attention.description.relative = right;
    problem.attention.description.relative.rows = right.rows.clone();
    problem.attention.description.relative.rows[place] = row;
    EXPECT_THROW(run_on_gpu(problem), std::out_of_range) << place << ' ' << row;
  }
  problem.attention.description.relative = right;
  EXPECT_NO_THROW(run_on_gpu(problem));
}

TEST_P(CudaAttentionTest, WhatIsFarOutOfAWindowIsNotVisited) {
  const auto layout = layout_of({200}, 0, 0);
  auto problem = problem_of(layout, 200, 1, 32, GetParam(), 0.1);
  problem.attention.description.rotary = rotary_table(200, 32, 100);
  problem.attention.description.window = 4;
  for (auto& tensor : {problem.attention.query, problem.attention.key, problem.attention.value, problem.grad}) {
    tensor[150].fill_(std::numeric_limits<double>::quiet_NaN());
  }
  const int64_t reach = 4 + 32;  // and what shares a block or a tile with it
  for (const auto& [name, result] : run_on_gpu(problem)) {
    if (result.dim() == 2) {
      EXPECT_TRUE(result.narrow(0, 0, 150 - 2 * reach).isfinite().all().item<bool>()) << name;
    }
  }
}

TEST_P(CudaAttentionTest, TakesColumnsOfOneMatrixAndGivesGradientsThatAre) {
  const auto layout = layout_of(kLengths, /*padding=*/3, /*filler=*/5);
  for (const int64_t head_size : {5, 64}) {  // rows that begin anywhere, and at multiples of 16 bytes
    auto problem = problem_of(layout, rows_of(layout, 3 + 5), 2, head_size, GetParam(), 0.1);
    auto& attention = problem.attention;
    const auto apart = run_on_gpu(problem);
    const int64_t hidden = 2 * head_size;
    const auto all = at::cat({attention.query, attention.key, attention.value}, 1);
    attention.query = all.narrow(1, 0, hidden);
    attention.key = all.narrow(1, hidden, hidden);
    attention.value = all.narrow(1, 2 * hidden, hidden);
    const auto columns = run_on_gpu(problem);
    for (size_t i = 0; i < apart.size(); ++i) {
      EXPECT_TRUE(at::equal(columns[i].second, apart[i].second)) << apart[i].first;
    }
    at::Tensor log_sum_exp;
    const auto output = MEZZO_CUDA::packed_attention(attention, &log_sum_exp);
    EXPECT_TRUE(output.is_contiguous());
    const auto grads = MEZZO_CUDA::packed_attention_backward(attention, output, log_sum_exp, problem.grad);
    EXPECT_TRUE(at::equal(grads.all, at::cat({grads.query, grads.key, grads.value}, 1)));
    EXPECT_TRUE(grads.all.is_contiguous() && grads.all.is_alias_of(grads.value));
  }
}

TEST_P(CudaAttentionTest, RowsOfNoSequenceAreZero) {
  const auto layout = layout_of({3, 40}, /*padding=*/2, /*filler=*/4);
  for (const int64_t head_size : {5, 64}) {
    auto problem = problem_of(layout, 51, 2, head_size, GetParam(), 0);
    // The first sequence may begin behind row 0. The kernels must not read rows outside the
    // sequences.
    problem.attention.layout = c10::make_intrusive<SequenceLayout>(at::tensor({4, 9, 45}, at::kInt),
                                                                   at::tensor({3, 36}, at::kInt), 51, at::kCPU);
    const auto is_free = owned(problem.attention.layout->sequences(), 51).logical_not();
    for (auto& tensor : {problem.attention.query, problem.attention.key, problem.attention.value, problem.grad}) {
      tensor.masked_fill_(is_free, std::numeric_limits<double>::quiet_NaN());
    }
    for (const std::optional<int64_t> window : {std::optional<int64_t>(), std::optional<int64_t>(6)}) {
      problem.attention.description.window = window;
      for (const auto& [name, result] : run_on_gpu(problem)) {
        EXPECT_TRUE(result.isfinite().all().item<bool>()) << name << " of heads of " << head_size;
        if (result.dim() == 2) {
          EXPECT_EQ(result.masked_select(is_free).count_nonzero().item<int64_t>(), 0) << name;
        }
      }
    }
  }
}

TEST_P(CudaAttentionTest, LargeScoresDoNotOverflow) {
  // Scores of a few thousand: all weights but one are 0 in float32, and e^score would be infinite.
  const auto layout = layout_of({50, 20}, 0, 0);
  auto problem = problem_of(layout, 70, 2, 32, GetParam(), 0, /*size=*/30);
  problem.attention.biases = {};  // rounded sums with them would make other scores
  const auto mine = run_on_gpu(problem), right = run_reference(problem);
  // A score has an error of 2^-23 times its 6000, and the weight that error, relative to 1: 1e-3;
  // to be added to the rounding of the result.
  const double of_weights = 1e-3;
  for (const size_t i : {0, 3}) {
    EXPECT_LT(distance(mine[i].second, right[i].second), of_weights + tolerance_of(GetParam())) << mine[i].first;
  }
  // Weights are 0 and 1, so only rounding is left of the other gradients. Their error is a weight's
  // error, times its gradient of up to 30, times elements of up to 120, over the root of 32. One
  // wrong weight would give 600.
  for (const size_t i : {1, 2}) {
    EXPECT_LT((mine[i].second.to(at::kDouble) - right[i].second).abs().max().item<double>(), 600 * of_weights)
        << mine[i].first;
  }
}

TEST_P(CudaAttentionTest, RepeatsItselfBitForBitInAnyOrderOfThreads) {
  const auto layout = layout_of(kLengths, 0, 3);
  const auto problem = problem_of(layout, rows_of(layout, 3), 2, 64, GetParam(), 0.2);
  auto relative = problem;
  relative.attention.description.relative = relative_of(40, 30, 2 * 64, GetParam());
  for (const auto& each : {problem, relative, only_first(relative)}) {
    const auto first = run_on_gpu(each), second = run_on_gpu(each);
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(at::equal(first[i].second, second[i].second)) << first[i].first;
    }
  }
}

SequenceLayoutPtr no_sequences(int64_t rows) {
  return c10::make_intrusive<SequenceLayout>(at::zeros({1}, at::kInt), at::empty({0}, at::kInt), rows, at::kCPU);
}

TEST_P(CudaAttentionTest, OfNoSequencesIsZero) {
  auto problem = problem_of(layout_of({4}, 0, 0), 4, 2, 5, GetParam(), 0);
  problem.attention.layout = no_sequences(4);
  problem.attention.description.relative = relative_of(4, 6, 2 * 5, GetParam());
  for (const auto& [name, result] : run_on_gpu(problem)) {
    EXPECT_EQ(result.count_nonzero().item<int64_t>(), 0) << name;
  }
}

TEST(CudaAttentionLaunchTest, ShortTextsTakeOneLaunchEachWay) {
  const auto layout = layout_of({20, 32, 1}, 0, 0);
  for (const auto dtype : {at::kFloat, at::kHalf}) {
    const auto problem = problem_of(layout, 53, 2, 64, dtype, 0.1);
    const int64_t before = kernels::MEZZO_CUDA::num_launches();
    run_on_gpu(problem);
    EXPECT_EQ(kernels::MEZZO_CUDA::num_launches() - before, 3) << "and one for the sums of biases, in " << dtype;
  }
}

/// Compute capability 7.5 has 64 KB a block. Gradients of wide float32 heads do not fit into it.
TEST(CudaAttentionLaunchTest, TakesTheHeadsForWhichTheDeviceHasSharedMemory) {
  struct Case {
    at::ScalarType dtype;
    int64_t head_size;
    double soft_cap;
    bool on_75;
  };
  const auto layout = layout_of({40, 3}, 0, 0);
  for (const auto& [dtype, head_size, soft_cap, on_75] :
       {Case{at::kFloat, 128, 0, true}, Case{at::kFloat, 129, 0, false}, Case{at::kFloat, 64, 3, true},
        Case{at::kFloat, 65, 3, false}, Case{at::kHalf, 256, 3, true}, Case{at::kBFloat16, 256, 0, true}}) {
    const auto takes = [&, dtype = dtype, head_size = head_size, soft_cap = soft_cap] {
      return MEZZO_CUDA::takes_heads(at::kCPU, dtype, head_size, soft_cap > 0);
    };
    EXPECT_TRUE(takes());
    const kernels::MEZZO_CUDA::WithDeviceLimits limits({.multiprocessors = 40, .shared_bytes = 64 * 1024});
    EXPECT_EQ(takes(), on_75) << dtype << " " << head_size;
    auto problem = problem_of(layout, 43, 1, head_size, dtype, 0.1);
    problem.attention.description.soft_cap = soft_cap;
    if (on_75) {
      EXPECT_NO_THROW(run_on_gpu(problem));
    } else {
      EXPECT_THROW(run_on_gpu(problem), std::logic_error) << "more than a launch can have";
    }
  }
  EXPECT_FALSE(MEZZO_CUDA::takes_heads(at::kCPU, at::kHalf, 257, false));
}

/// As a recorded step has it: where sequences lie, and the masks' step, are in the device's memory.
TEST_P(CudaAttentionTest, TakesLayoutsAndStepsThatTheDeviceAloneKnows) {
  const auto known = layout_of({20, 7, 30}, 0, 3);
  const auto unknown = [&](int64_t longest) {
    return c10::make_intrusive<SequenceLayout>(known->table(), rows_of(known, 3), longest);
  };
  const auto step_offset = at::scalar_tensor(4, at::kLong);
  auto problem = problem_of(known, rows_of(known, 3), 2, 64, GetParam(), 0.2);
  problem.attention.description.rotary = rotary_table(128, 64, 100);
  problem.attention.description.window = 9;
  auto relative = problem_of(known, rows_of(known, 3), 2, 64, GetParam(), 0.2);
  relative.attention.description.relative = relative_of(128, 30, 2 * 64, GetParam());
  auto relative_first = only_first(relative);
  const auto run = [&] {
    Named all;
    for (const auto& of_kind : {run_on_gpu(problem), run_on_gpu(relative), run_on_gpu(relative_first)}) {
      all.insert(all.end(), of_kind.begin(), of_kind.end());
    }
    return all;
  };
  const auto right = run();
  for (Problem* each : {&problem, &relative, &relative_first}) {
    each->attention.description.dropout.key.step -= 4;
    each->attention.description.dropout.step_offset = step_offset;
  }
  for (const int64_t longest : {30, 32, 128}) {
    problem.attention.layout = relative.attention.layout = relative_first.attention.layout = unknown(longest);
    const auto mine = run();
    for (size_t i = 0; i < right.size(); ++i) {
      if (longest <= 32) {  // as long as that, texts take the same launches
        EXPECT_TRUE(at::equal(mine[i].second, right[i].second)) << mine[i].first << ", longest " << longest;
      }
      EXPECT_LT(distance(mine[i].second, right[i].second), tolerance_of(mine[i].second.scalar_type()))
          << mine[i].first << ", longest " << longest;
    }
  }
}

/// A recorded step runs again on a table of the same size, in which other sequences lie.
TEST_P(CudaAttentionTest, TakesOtherLengthsFromTheSameTable) {
  const std::vector<std::vector<int32_t>> batches = {{20, 7, 30}, {1, 64, 9}, {100, 2, 5}};
  const auto table = at::zeros({3, 2}, at::kInt);
  auto problem = problem_of(layout_of({110}, 0, 0), 110, 2, 32, GetParam(), 0.2);
  problem.attention.description.is_causal = true;
  for (const auto& lengths : batches) {
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const auto known = layout_of(lengths, /*padding=*/0, /*filler=*/110 - tokens);
    table.copy_(known->table());
    problem.attention.layout = c10::make_intrusive<SequenceLayout>(table, 110, /*longest=*/128);
    const auto mine = run_on_gpu(problem);
    problem.attention.layout = known;
    expect_near(mine, run_reference(problem), tolerance_of(GetParam()), GetParam(), false, run_rounded(problem));
  }
}

INSTANTIATE_TEST_SUITE_P(AllDtypes, CudaAttentionTest, testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

TEST(SequenceLayoutTest, HasATableOfItsSequences) {
  const auto layout = layout_of({3, 5}, /*padding=*/2, /*filler=*/1);
  EXPECT_TRUE(at::equal(layout->table(), at::tensor({0, 3, 5, 5}, at::kInt).view({2, 2})));
  EXPECT_TRUE(at::equal(layout->first_rows(), at::tensor({0, 5}, at::kLong)));
}

TEST(SequenceLayoutTest, ThatTheDeviceAloneKnowsTellsNobodyElse) {
  const SequenceLayout layout(at::tensor({0, 3, 3, 5}, at::kInt).view({2, 2}), 8, 5);
  EXPECT_EQ(layout.size(), 2);
  EXPECT_EQ(layout.longest(), 5);
  EXPECT_TRUE(at::equal(layout.first_rows(), at::tensor({0, 3}, at::kLong)));
  EXPECT_THROW(layout.sequences(), c10::Error);
  EXPECT_THROW(layout.is_gapless(), c10::Error);
  EXPECT_THROW(layout.padding(), c10::Error);
}

}  // namespace
}  // namespace mezzo::encoder
