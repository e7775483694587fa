#include "encoder/fused_blocks.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <random>
#include <tuple>

#include "encoder/blocks.h"
#include "encoder/cpu/block_ops.h"
#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/cast_log.h"
#include "mezzo/amp/cpu_half_compute.h"
#include "mezzo/amp/finite_tracer.h"

namespace mezzo::encoder {
namespace {

using Tensors = std::vector<at::Tensor>;

/// A packed batch: rows of texts, with padding behind some and filler at the end.
struct Rows {
  Rows(const std::vector<int32_t>& lengths, int32_t padding, int64_t filler) {
    auto cu_seqlens = at::zeros({static_cast<int64_t>(lengths.size()) + 1}, at::kInt);
    int32_t total = 0;
    for (size_t b = 0; b < lengths.size(); ++b) {
      cu_seqlens[static_cast<int64_t>(b) + 1] = total += lengths[b] + static_cast<int32_t>(b % 2) * padding;
    }
    count = total + filler;
    layout = c10::make_intrusive<SequenceLayout>(cu_seqlens, at::tensor(lengths, at::kInt), count, at::kCPU);
  }

  /// 1 for rows of tokens, 0 for the others, whose values have no meaning.
  at::Tensor token_mask() const {
    auto mask = at::zeros({count, 1});
    for (const auto& [first, tokens] : layout->sequences()) {
      mask.narrow(0, first, tokens).fill_(1);
    }
    return mask;
  }

  int64_t count = 0;
  SequenceLayoutPtr layout;
};

struct Shape {
  std::string name;
  std::vector<int32_t> lengths;
  int32_t padding;
  int64_t filler, heads, head_size;
};

std::vector<Shape> shapes() {
  std::vector<Shape> result = {{"OneToken", {1}, 0, 0, 1, 8},
                               {"OddSizes", {3, 1, 17, 2}, 3, 5, 3, 5},
                               {"WholeVectors", {32, 8, 16}, 0, 8, 2, 64},
                               {"Longest", {512, 1, 33}, 0, 0, 2, 32}};
  std::mt19937 random(7);
  for (int i = 0; i < 4; ++i) {
    const auto draw = [&](int32_t most) { return std::uniform_int_distribution<int32_t>(1, most)(random); };
    Shape shape{"Random" + std::to_string(i), {}, draw(4) - 1, draw(40) - 1, draw(4), draw(70)};
    shape.lengths.resize(draw(9));
    std::generate(shape.lengths.begin(), shape.lengths.end(), [&] { return draw(70); });
    result.push_back(shape);
  }
  return result;
}

/// A part of a layer: its parameters, and its function of x and them, fused and as a composition of
/// ATen operations.
struct Block {
  Tensors params;
  std::function<at::Tensor(const at::Tensor& x, const Tensors& params)> fused, composed;
};

Tensors random_params(const std::vector<std::vector<int64_t>>& sizes) {
  Tensors params;
  for (const auto& size : sizes) {
    params.push_back(at::randn(size).mul_(size.size() == 2 ? 1 / std::sqrt(static_cast<double>(size[1])) : 0.5));
  }
  return params;
}

Block attention(const Shape& shape, const Rows& rows, double p, bool only_first_rows) {
  const int64_t h = shape.heads * shape.head_size;
  const auto params_of = [=, heads = shape.heads](const Tensors& w) {
    return AttentionParams{
        .query_key_value = {{w[0], w[1]}, {w[2], w[3]}, {w[4], w[5]}},
        .output = {w[6], w[7]},
        .norm = {w[8], w[9], 1e-5},
        .attention = {.num_heads = heads, .dropout = {p, {11, 2, 5}}, .only_first_queries = only_first_rows},
        .output_dropout = {p, {11, 2, 6}}};
  };
  return {random_params({{h, h}, {h}, {h, h}, {h}, {h, h}, {h}, {h, h}, {h}, {h}, {h}}),
          [=, &rows](const at::Tensor& x, const Tensors& w) { return attention_block(x, params_of(w), rows.layout); },
          [=, &rows](const at::Tensor& x, const Tensors& w) {
            return reference::attention_block(x, params_of(w), rows.layout);
          }};
}

/// With terms for relative positions, whose keys, queries or both come behind the parameters of `attention`.
Block relative_attention(const Shape& shape, const Rows& rows, double p, bool only_first_rows, bool key, bool query) {
  constexpr int64_t kRows = 151, kLongest = 512;
  const int64_t h = shape.heads * shape.head_size;
  // One each for the nearest distances, and one between them that none has; then 16 a row, behind 40 that none has.
  const auto distances = at::arange(1 - kLongest, kLongest, at::kLong);
  const auto near = distances.clamp(-7, 7), far = distances - near;
  const auto row_of = (2 * near + far.div(16, "trunc") + 40 * far.sign() + kRows / 2).clamp(0, kRows - 1);
  Block plain = attention(shape, rows, p, only_first_rows);
  const auto params_of = [=, heads = shape.heads](const Tensors& w) {
    return AttentionParams{
        .query_key_value = {{w[0], w[1]}, {w[2], w[3]}, {w[4], w[5]}},
        .output = {w[6], w[7]},
        .norm = {w[8], w[9], 1e-5},
        .attention = {.num_heads = heads,
                      .dropout = {p, {11, 2, 5}},
                      .only_first_queries = only_first_rows,
                      .relative = {key ? w[10] : at::Tensor(), query ? w[key ? 11 : 10] : at::Tensor(), row_of}},
        .output_dropout = {p, {11, 2, 6}}};
  };
  Tensors params = plain.params;
  for (int64_t i = 0; i < (key ? 1 : 0) + (query ? 1 : 0); ++i) {
    params.push_back(at::randn({kRows, h}));
  }
  return {params,
          [=, &rows](const at::Tensor& x, const Tensors& w) { return attention_block(x, params_of(w), rows.layout); },
          [=, &rows](const at::Tensor& x, const Tensors& w) {
            return reference::attention_block(x, params_of(w), rows.layout);
          }};
}

Block feed_forward(const Shape& shape, Activation activation, double p) {
  const int64_t h = shape.heads * shape.head_size, f = 3 * h + 1;
  const auto params_of = [activation, p](const Tensors& w) {
    return FeedForwardParams{.intermediate = {w[0], w[1]},
                             .output = {w[2], w[3]},
                             .activation = activation,
                             .norm = {w[4], w[5], 1e-5},
                             .dropout = {p, {11, 2, 7}}};
  };
  return {random_params({{f, h}, {f}, {h, f}, {h}, {h}, {h}}),
          [=](const at::Tensor& x, const Tensors& w) { return feed_forward_block(x, params_of(w), {}); },
          [=](const at::Tensor& x, const Tensors& w) { return reference::feed_forward_block(x, params_of(w), {}); }};
}

/// What differs among pre-norm layers.
struct PreNorm {
  bool has_norm = false, has_norm_bias = false, has_biases = false, turns = false, only_first_rows = false;
  std::optional<int64_t> window = {};
};

/// Of a half of such a layer: two matrices, the norm's weight and bias, then the biases of the
/// matrices. A missing tensor is undefined.
struct PreNormWeights {
  PreNormWeights(const Tensors& given, const PreNorm& kind) {
    auto next = given.begin();
    inner = *next++;
    outer = *next++;
    if (kind.has_norm) {
      norm = *next++;
    }
    if (kind.has_norm_bias) {
      norm_bias = *next++;
    }
    if (kind.has_biases) {
      inner_bias = *next++;
      outer_bias = *next++;
    }
  }

  /// Random ones: matrices [wide, h] and [h, narrow].
  static Tensors random(const PreNorm& kind, int64_t h, int64_t wide, int64_t narrow) {
    std::vector<std::vector<int64_t>> sizes{{wide, h}, {h, narrow}};
    if (kind.has_norm) {
      sizes.push_back({h});
    }
    if (kind.has_norm_bias) {
      sizes.push_back({h});
    }
    if (kind.has_biases) {
      sizes.insert(sizes.end(), {{wide}, {h}});
    }
    return random_params(sizes);
  }

  at::Tensor inner, outer, norm, inner_bias, outer_bias, norm_bias;
};

using AttentionBlock = at::Tensor(const at::Tensor&, const AttentionParams&, const SequenceLayoutPtr&);
using FeedForwardBlock = at::Tensor(const at::Tensor&, const FeedForwardParams&, const at::Tensor&);

Block pre_norm_attention(const Shape& shape, const Rows& rows, double p, const PreNorm& kind) {
  const int64_t h = shape.heads * shape.head_size;
  const auto rotary = kind.turns ? rotary_table(512, shape.head_size, 100) : at::Tensor();
  const auto with = [=, heads = shape.heads, &rows](AttentionBlock& block) {
    return [=, &rows, &block](const at::Tensor& x, const Tensors& given) {
      const PreNormWeights w(given, kind);
      return block(x,
                   {.query_key_value = {{w.inner, w.inner_bias}},
                    .output = {w.outer, w.outer_bias},
                    .norm = {w.norm, w.norm_bias, 1e-5},
                    .attention = {.num_heads = heads,
                                  .dropout = {p, {11, 2, 5}},
                                  .window = kind.window,
                                  .only_first_queries = kind.only_first_rows,
                                  .rotary = rotary},
                    .output_dropout = {p, {11, 2, 6}},
                    .norm_first = true},
                   rows.layout);
    };
  };
  return {PreNormWeights::random(kind, h, 3 * h, h), with(attention_block), with(reference::attention_block)};
}

Block pre_norm_feed_forward(const Shape& shape, Activation activation, double p, const PreNorm& kind) {
  const int64_t h = shape.heads * shape.head_size, f = 2 * h + 1;
  const auto with = [=](FeedForwardBlock& block) {
    return [=, &block](const at::Tensor& x, const Tensors& given) {
      const PreNormWeights w(given, kind);
      return block(x,
                   {.intermediate = {w.inner, w.inner_bias},
                    .output = {w.outer, w.outer_bias},
                    .activation = activation,
                    .norm = {w.norm, w.norm_bias, 1e-5},
                    .dropout = {p, {11, 2, 8}},
                    .norm_first = true,
                    .is_gated = true,
                    .inner_dropout = {p, {11, 2, 7}}},
                   {});
    };
  };
  return {PreNormWeights::random(kind, h, 2 * f, f), with(feed_forward_block), with(reference::feed_forward_block)};
}

Block embeddings(const Shape& shape, const Rows& rows, double p) {
  const int64_t h = shape.heads * shape.head_size;
  const DropoutSite site{p, {11, 2, 8}};
  const auto ids = at::randint(13, {rows.count}, at::kLong), positions = at::randint(9, {rows.count}, at::kLong);
  const auto types = p > 0 ? at::randint(2, {rows.count}, at::kLong) : at::Tensor();
  return {random_params({{13, h}, {9, h}, {2, h}, {h}, {h}}),
          [=](const at::Tensor&, const Tensors& w) {
            return embedding_layer_norm(w[0], w[1], w[2], ids, positions, types, {w[3], w[4], 1e-5}, site);
          },
          [=](const at::Tensor&, const Tensors& w) {
            return reference::embedding_layer_norm(w[0], w[1], w[2], ids, positions, types, {w[3], w[4], 1e-5}, site);
          }};
}

enum class Precision { kFloat32, kBFloat16, kHalf };

/// Value and gradients: the output times fixed weights, by x and the parameters.
Tensors value_and_gradients(const std::function<at::Tensor(const at::Tensor&, const Tensors&)>& forward,
                            const at::Tensor& x,
                            const Tensors& params,
                            const at::Tensor& grad,
                            at::ScalarType dtype,
                            std::optional<at::ScalarType> autocast) {
  const auto leaf = [&](const at::Tensor& t) { return t.to(dtype, false, /*copy=*/true).requires_grad_(); };
  Tensors inputs{leaf(x)};
  for (const auto& param : params) {
    inputs.push_back(leaf(param));
  }
  at::Tensor output;
  {
    const AutocastGuard guard(at::kCPU, autocast.value_or(at::kBFloat16), autocast.has_value());
    output = forward(inputs[0], {inputs.begin() + 1, inputs.end()});
  }
  auto result =
      torch::autograd::grad({output}, inputs, {grad.to(output.scalar_type())}, {}, false, /*allow_unused=*/true);
  result.insert(result.begin(), output.detach());
  std::erase_if(result, [](const at::Tensor& gradient) { return !gradient.defined(); });  // x, for embeddings
  return result;
}

/// The derivative of <output, grad> along `directions` (of x, then of the parameters) by a
/// central difference in float64.
double finite_difference(const std::function<at::Tensor(const at::Tensor&, const Tensors&)>& forward,
                         const at::Tensor& x,
                         const Tensors& params,
                         const at::Tensor& grad,
                         const Tensors& directions) {
  // So short that hardly a value crosses the kink of ReLU; the sums' rounding, 1e-16 of them,
  // stays far below float32's.
  constexpr double kStep = 1e-7;
  const auto value_at = [&](double step) {
    const auto moved = [&](const at::Tensor& t, size_t i) { return t.to(at::kDouble) + step * directions[i]; };
    Tensors weights;
    for (size_t i = 0; i < params.size(); ++i) {
      weights.push_back(moved(params[i], i + 1));
    }
    return (forward(moved(x, 0), weights) * grad.to(at::kDouble)).sum().item<double>();
  };
  const at::NoGradGuard no_grad;
  return (value_at(kStep) - value_at(-kStep)) / (2 * kStep);
}

/// How far tensor `i` of `values` is from the right one: the norm of the difference.
double error(const Tensors& values, const Tensors& right, size_t i, const at::Tensor& output_mask) {
  auto difference = values[i].to(at::kDouble) - right[i].to(at::kDouble);
  return (i == 0 ? difference * output_mask : difference).norm().item<double>();
}

/// The unit of errors of tensor `i`. The bias of the keys shifts all scores of a query by the same
/// number, except scores with a query of relative positions. So the terms of its gradient cancel
/// out. What remains is the rounding of terms as large as the terms of x.
double magnitude(const Tensors& right, size_t i) {
  const bool is_key_bias = right.size() >= 12 && i == 5;  // of attention, with tables of positions or without
  return std::max(1e-3, right[is_key_bias ? 1 : i].to(at::kDouble).norm().item<double>());
}

/// While it lives, nothing is fused: attention within a composition would be, too.
struct WithoutBlockOps {
  WithoutBlockOps() { set_block_ops(at::kCPU, nullptr); }
  ~WithoutBlockOps() { set_block_ops(at::kCPU, &cpu::kBlockOps); }
};

struct Case {
  Shape shape;
  Precision precision;
};

class FusedBlocksTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { torch::manual_seed(0); }

  /// Against the composition in float64. Half types may be twice as far from it as the composition
  /// in them, and a unit in the last place.
  void check(const Block& block,
             const Rows& rows,
             bool only_first_rows = false,
             std::optional<int64_t> hidden = std::nullopt) {
    const int64_t h = hidden.value_or(GetParam().shape.heads * GetParam().shape.head_size);
    const auto x = at::randn({rows.count, h});
    const auto mask =
        only_first_rows ? at::ones({static_cast<int64_t>(rows.layout->sequences().size()), 1}) : rows.token_mask();
    const auto grad = at::randn({mask.size(0), h}) * mask;
    const auto right = value_and_gradients(block.composed, x, block.params, grad, at::kDouble, std::nullopt);
    switch (GetParam().precision) {
      case Precision::kFloat32: {
        const auto mine = value_and_gradients(block.fused, x, block.params, grad, at::kFloat, std::nullopt);
        ASSERT_EQ(mine.size(), right.size());
        for (size_t i = 0; i < mine.size(); ++i) {
          ASSERT_EQ(mine[i].sizes(), right[i].sizes()) << i;
          // Some 50 roundings on the way, each of 6e-8 at most.
          EXPECT_LE(error(mine, right, i, mask), 3e-6 * magnitude(right, i)) << kWhich << i;
        }
        expect_slope(block, x, grad, mine);
        break;
      }
      case Precision::kBFloat16: check_half(block, x, grad, mask, right, at::kBFloat16, 0x1p-8); break;
      case Precision::kHalf: check_half(block, x, grad, mask, right, at::kHalf, 0x1p-11); break;
    }
  }

 private:
  /// `mine`: the output, then gradients of x, if x has a gradient, and of the parameters.
  static void expect_slope(const Block& block, const at::Tensor& x, const at::Tensor& grad, const Tensors& mine) {
    const size_t first = mine.size() - 1 - block.params.size();  // 1 where x has a gradient
    Tensors directions{at::randn(x.sizes(), at::kDouble) * static_cast<double>(first)};
    double slope = first == 0 ? 0 : (mine[1].to(at::kDouble) * directions[0]).sum().item<double>();
    double size = first == 0 ? 0 : mine[1].norm().item<double>();
    for (size_t i = 0; i < block.params.size(); ++i) {
      const auto gradient = mine[1 + first + i].to(at::kDouble);
      directions.push_back(at::randn(gradient.sizes(), at::kDouble));
      slope += (gradient * directions.back()).sum().item<double>();
      size = std::hypot(size, gradient.norm().item<double>());
    }
    // A random direction's share of an error is about the error's norm; twice, for chance,
    // and again for many tensors.
    EXPECT_NEAR(slope, finite_difference(block.composed, x, block.params, grad, directions), 8e-6 * size);
  }

  static constexpr const char* kWhich = "0 is the output, 1 the gradient of x, then of parameters: ";

  static void check_half(const Block& block,
                         const at::Tensor& x,
                         const at::Tensor& grad,
                         const at::Tensor& mask,
                         const Tensors& right,
                         at::ScalarType dtype,
                         double unit) {
    const CpuHalfCompute half_compute;
    // Float32 parameters under autocast; then a model that is all half, as master weights leave it.
    for (const auto leaves : {at::kFloat, dtype}) {
      const auto theirs = [&] {
        const WithoutBlockOps composed;
        return value_and_gradients(block.composed, x, block.params, grad, leaves, dtype);
      }();
      const auto mine = value_and_gradients(block.fused, x, block.params, grad, leaves, dtype);
      ASSERT_EQ(mine.size(), right.size());
      for (size_t i = 0; i < mine.size(); ++i) {
        ASSERT_EQ(mine[i].sizes(), right[i].sizes()) << i;
        EXPECT_EQ(mine[i].scalar_type(), theirs[i].scalar_type()) << i;
        EXPECT_LE(error(mine, right, i, mask), 2 * error(theirs, right, i, mask) + unit * magnitude(right, i))
            << kWhich << i;
      }
    }
  }
};

TEST_P(FusedBlocksTest, AttentionEqualsItsComposition) {
  const auto& shape = GetParam().shape;
  const Rows rows(shape.lengths, shape.padding, shape.filler);
  for (const double p : {0.0, 0.2}) {
    for (const bool only_first_rows : {false, true}) {
      SCOPED_TRACE(testing::Message() << "dropout " << p << ", only first rows " << only_first_rows);
      check(attention(shape, rows, p, only_first_rows), rows, only_first_rows);
    }
  }
}

TEST_P(FusedBlocksTest, RelativeAttentionEqualsItsComposition) {
  const auto& shape = GetParam().shape;
  const Rows rows(shape.lengths, shape.padding, shape.filler);
  for (const double p : {0.0, 0.2}) {
    for (const bool only_first_rows : {false, true}) {
      for (const auto& [key, query] : {std::pair(true, true), std::pair(true, false), std::pair(false, true)}) {
        SCOPED_TRACE(testing::Message() << "dropout " << p << ", only first rows " << only_first_rows << ", key " << key
                                        << ", query " << query);
        check(relative_attention(shape, rows, p, only_first_rows, key, query), rows, only_first_rows);
      }
    }
  }
}

TEST_P(FusedBlocksTest, FeedForwardEqualsItsComposition) {
  const auto& shape = GetParam().shape;
  const Rows rows(shape.lengths, shape.padding, shape.filler);
  for (const double p : {0.0, 0.2}) {
    for (const auto activation : {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
      if (activation == Activation::kRelu && GetParam().precision != Precision::kFloat32) {
        continue;  // rounding moves values across its kink
      }
      SCOPED_TRACE(testing::Message() << "dropout " << p << ", activation " << static_cast<int>(activation));
      check(feed_forward(shape, activation, p), rows);
    }
  }
}

TEST_P(FusedBlocksTest, PreNormAttentionEqualsItsComposition) {
  auto shape = GetParam().shape;
  shape.head_size += shape.head_size % 2;  // turned in pairs
  const Rows rows(shape.lengths, shape.padding, shape.filler);
  const std::vector<PreNorm> kinds = {
      {.has_norm = true, .turns = true, .window = 8},
      {.has_norm = true, .has_norm_bias = true, .has_biases = true, .turns = true, .window = 37},
      {.has_norm = true, .has_norm_bias = true, .turns = true, .window = 8},
      {.has_norm = true, .has_biases = true, .only_first_rows = true, .window = 8},
      {.has_norm = false, .turns = true, .window = {}},
      {.has_norm = false, .has_biases = true, .only_first_rows = true, .window = 5},
      {.has_norm = true, .turns = true, .only_first_rows = true, .window = {}},
      {.has_norm = true, .window = 0}};
  for (const double p : {0.0, 0.2}) {
    for (size_t i = 0; i < kinds.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "dropout " << p << ", kind " << i);
      check(pre_norm_attention(shape, rows, p, kinds[i]), rows, kinds[i].only_first_rows,
            shape.heads * shape.head_size);
    }
  }
}

TEST_P(FusedBlocksTest, PreNormFeedForwardEqualsItsComposition) {
  const auto& shape = GetParam().shape;
  const Rows rows(shape.lengths, shape.padding, shape.filler);
  for (const double p : {0.0, 0.2}) {
    for (const auto& [activation, has_norm_bias, has_biases] :
         {std::tuple(Activation::kGelu, false, false), std::tuple(Activation::kGeluTanh, true, true),
          std::tuple(Activation::kRelu, true, false), std::tuple(Activation::kGelu, true, false),
          std::tuple(Activation::kRelu, false, true)}) {
      if (activation == Activation::kRelu && GetParam().precision != Precision::kFloat32) {
        continue;  // rounding moves values across its kink
      }
      SCOPED_TRACE(testing::Message() << "dropout " << p << ", activation " << static_cast<int>(activation)
                                      << ", norm's bias " << has_norm_bias << ", biases " << has_biases);
      const PreNorm kind{.has_norm = true, .has_norm_bias = has_norm_bias, .has_biases = has_biases};
      check(pre_norm_feed_forward(shape, activation, p, kind), rows);
    }
  }
}

TEST_P(FusedBlocksTest, EmbeddingsEqualTheirComposition) {
  const auto& shape = GetParam().shape;
  const Rows rows(shape.lengths, shape.padding, shape.filler);
  for (const double p : {0.0, 0.2}) {
    SCOPED_TRACE(p);
    check(embeddings(shape, rows, p), rows);
  }
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const auto& shape : shapes()) {
    for (const auto precision : {Precision::kFloat32, Precision::kBFloat16, Precision::kHalf}) {
      result.push_back({shape, precision});
    }
  }
  return result;
}

std::string name_of(const testing::TestParamInfo<Case>& test) {
  constexpr const char* kPrecisions[] = {"Float32", "BFloat16", "Half"};
  return test.param.shape.name + kPrecisions[static_cast<int>(test.param.precision)];
}

INSTANTIATE_TEST_SUITE_P(All, FusedBlocksTest, testing::ValuesIn(cases()), name_of);

TEST(FusedEmbeddings, GiveCallersAndHooksADenseGradientWhereOneIsThere) {
  const auto leaf = [](at::IntArrayRef sizes) { return at::randn(sizes).requires_grad_(); };
  const auto words = leaf({13, 8}), places = leaf({9, 8}), types = leaf({2, 8}), weight = leaf({8}), bias = leaf({8});
  const auto ids = at::randint(13, {20}, at::kLong), positions = at::randint(9, {20}, at::kLong);
  const auto loss = [&] {
    return embedding_layer_norm(words, places, types, ids, positions, {}, {weight, bias, 1e-5}, {}).pow(3).sum();
  };
  loss().backward();
  const auto once = words.grad().clone();
  const auto expect_once = [&](const at::Tensor& gradient) {
    ASSERT_EQ(gradient.layout(), at::kStrided);
    EXPECT_TRUE(at::equal(gradient, once));
  };
  expect_once(torch::autograd::grad({loss()}, {words}).front());
  struct Looks : torch::autograd::FunctionPreHook {
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
      seen = gradients.front();
      return gradients;
    }
    at::Tensor seen;
  };
  const auto accumulator = torch::autograd::impl::grad_accumulator(words);
  auto looks = std::make_unique<Looks>();
  const at::Tensor& seen_by_node = looks->seen;
  accumulator->add_pre_hook(std::move(looks));
  loss().backward();
  expect_once(seen_by_node);
  EXPECT_TRUE(at::equal(words.grad(), 2 * once));
  at::Tensor seen;
  places.register_hook([&](const at::Tensor& gradient) { seen = gradient; });
  const auto before = places.grad().clone();
  loss().backward();
  ASSERT_EQ(seen.layout(), at::kStrided);
  EXPECT_TRUE(at::allclose(places.grad(), before + seen, 1e-6, 1e-6));
}

TEST(FusedKernels, DoNotDependOnTheNumberOfThreads) {
  const Rows rows({20, 3, 41, 7, 100}, 0, 5);
  const int64_t heads = 4, h = 96;
  const auto make = [&] { return at::randn({rows.count, h}); };
  const auto query = make(), key = make(), value = make(), grad = make(), residual = make(), product = make();
  const auto vector = at::randn({h}), rotary = rotary_table(100, h / heads, 50);
  const DropoutSite site{0.1, {1, 2, 3}};
  const auto row_of_table = at::randint(7, {300}), added = at::randn({300, 70});
  const auto compute = [&] {
    at::Tensor log_sum_exp;
    const AttentionDescription plain{.num_heads = heads, .dropout = site};
    const AttentionArguments attention{query, key, value, {vector, vector, vector}, rows.layout, plain};
    Tensors results{cpu::packed_attention(attention, &log_sum_exp)};
    const auto of_attention = cpu::packed_attention_backward(attention, results.back(), log_sum_exp, grad);
    Normalised normalised;
    results.push_back(
        cpu::residual_layer_norm(product.clone(), vector, residual, {vector, vector, 1e-5}, site, {}, &normalised));
    const auto of_norm = cpu::residual_layer_norm_backward(grad, normalised, vector, site, {}, at::kFloat, at::kFloat);
    const FirstTokenAttention first_token{at::stack({query.narrow(0, 0, 5), key.narrow(0, 0, 5)}), value, 0.1F,
                                          rows.layout, site};
    const auto weighted = cpu::first_token_attention(first_token, &log_sum_exp);
    const auto of_first_token = cpu::first_token_attention_backward(first_token, log_sum_exp, weighted, at::kBFloat16);
    const auto of_activation = cpu::bias_activation_backward(grad.clone(), product, vector, Activation::kGelu);
    const auto columns = at::cat({query, key, value}, 1);
    const auto column = [&](int64_t i) { return columns.narrow(1, i * h, h); };
    auto windowed = plain;
    windowed.window = 9;
    windowed.rotary = rotary;
    const AttentionArguments local{column(0), column(1), column(2), {}, rows.layout, windowed};
    results.push_back(cpu::packed_attention(local, &log_sum_exp));
    const auto of_local = cpu::packed_attention_backward(local, results.back(), log_sum_exp, grad);
    results.push_back(of_local.all);
    auto relative = plain;
    relative.relative = {key.narrow(0, 0, 40), value.narrow(0, 7, 40),
                         at::arange(-99, 100, at::kLong).clamp(-20, 19) + 20};
    const AttentionArguments by_distance{query, key, value, {}, rows.layout, relative};
    results.push_back(cpu::packed_attention(by_distance, &log_sum_exp));
    const auto of_distance = cpu::packed_attention_backward(by_distance, results.back(), log_sum_exp, grad);
    for (const auto& tensor : {of_distance.query, of_distance.key, of_distance.value, of_distance.relative_key,
                               of_distance.relative_query}) {
      results.push_back(tensor);
    }
    results.push_back(cpu::layer_norm(product, {vector, {}, 1e-5}, at::kFloat, &normalised));
    const auto of_layer_norm = cpu::layer_norm_backward(grad, normalised, vector, residual, at::kFloat);
    const auto of_residual = cpu::residual_dropout_backward(grad, /*has_bias=*/true, site, {}, at::kFloat);
    const auto inner = at::cat({product, residual}, 1), inner_bias = at::cat({vector, vector});
    results.push_back(cpu::gated_activation(inner, inner_bias, Activation::kGelu, site, {}));
    const auto of_gated = cpu::gated_activation_backward(grad.clone(), inner, inner_bias, Activation::kGelu, site, {});
    for (const auto& tensor : {of_layer_norm.x, of_layer_norm.norm.weight, of_layer_norm.norm.bias, of_residual.product,
                               of_residual.bias, of_gated.product, of_gated.output, of_gated.bias}) {
      results.push_back(tensor);
    }
    for (const auto& tensor :
         {of_attention.query, of_attention.key, of_attention.value, of_attention.biases.query, of_attention.biases.key,
          of_attention.biases.value, of_norm.product, of_norm.residual, of_norm.bias, of_norm.norm.weight,
          of_norm.norm.bias, weighted.rows, weighted.weight_sums, of_first_token.query, of_first_token.rows,
          of_activation.product, of_activation.output, of_activation.bias}) {
      results.push_back(tensor);
    }
    // Two stripes of columns and three threads: rows are shared as well.
    auto table = at::zeros({7, 70});
    cpu::kBlockOps.add_rows_at(row_of_table, added, table);
    results.push_back(table);
    return results;
  };
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  const auto many = compute();
  at::set_num_threads(1);
  const auto one = compute();
  at::set_num_threads(threads);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(at::equal(many[i], one[i])) << i;
  }
}

TEST(FusedBlocks, AddTheGradientOfAnEmbeddingToOneThatIsThere) {
  const auto ids = at::randint(7, {40}), positions = at::randint(3, {40}), norm = at::ones({8});
  const auto start = at::randn({20, 8}), grad = at::randn({40, 8});
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto table = at::randn({20, 8}).to(dtype), others = at::randn({3, 8}).to(dtype);
    const auto gradient = [&](const at::Tensor& there) {
      const auto word = table.detach().clone().requires_grad_();
      word.mutable_grad() = there;
      embedding_layer_norm(word, others, others, ids, positions, {}, {norm, norm, 1e-5}, {}).backward(grad.to(dtype));
      return word.grad();
    };
    const auto there = start.to(dtype);
    EXPECT_TRUE(at::equal(gradient(there.clone()), there + gradient({}))) << dtype;
    EXPECT_EQ(gradient(there).const_data_ptr(), there.const_data_ptr());
  }
}

TEST(FusedBlocks, RefuseIdsThatTheModelDoesNotHave) {
  const auto table = at::randn({5, 8}), norm = at::ones({8});
  const auto run = [&](int64_t id, int64_t position, int64_t type = 0) {
    embedding_layer_norm(table, table, table, at::tensor({id}), at::tensor({position}), at::tensor({type}),
                         {norm, norm, 1e-5}, {});
  };
  EXPECT_THROW(run(5, 0), c10::IndexError);
  EXPECT_THROW(run(-1, 0), c10::IndexError);
  EXPECT_THROW(run(0, 5), c10::IndexError);
  EXPECT_THROW(run(0, 0, 5), c10::IndexError);
  run(4, 4, 4);
}

TEST(FusedBlocks, GiveAWeightTheSameGradientWithAHalfCopyAndWithout) {
  const int64_t rows = 100, h = 64, f = 200;
  const auto x = at::randn({rows, h}), vector = at::randn({h}), inner_bias = at::randn({f});
  const auto inner = at::randn({f, h}).requires_grad_(), outer = at::randn({h, f}).requires_grad_();
  const auto gradients = [&](bool has_half_copy) {
    const auto half_copy = [&](const at::Tensor& weight) {
      return has_half_copy ? weight.detach().to(at::kBFloat16) : at::Tensor();
    };
    const AutocastGuard autocast(at::kCPU, at::kBFloat16);
    const auto output = feed_forward_block(x,
                                           {.intermediate = {inner, inner_bias, half_copy(inner)},
                                            .output = {outer, vector, half_copy(outer)},
                                            .activation = Activation::kGelu,
                                            .norm = {vector, vector, 1e-5},
                                            .dropout = {}},
                                           {});
    return torch::autograd::grad({output.pow(2).sum()}, {inner, outer});
  };
  const auto with = gradients(true), without = gradients(false);
  for (size_t i = 0; i < with.size(); ++i) {
    EXPECT_EQ(with[i].scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(with[i], without[i])) << i;
  }
}

TEST(FusedBlocks, RefuseASecondDerivative) {
  const Shape shape{"", {4}, 0, 0, 1, 8};
  const auto block = feed_forward(shape, Activation::kGelu, 0);
  Tensors params = block.params;
  const auto x = at::randn({4, 8}).requires_grad_();
  const auto output = block.fused(x, params);
  EXPECT_THROW(torch::autograd::grad({output.sum()}, {x}, {}, true, /*create_graph=*/true), c10::NotImplementedError);
}

TEST(FusedBlocks, LetAnObserverSeeEveryOperation) {
  const auto x = at::randn({4, 8});
  EXPECT_TRUE(fused::can_run(x));
  {
    const FiniteTracer tracer;
    EXPECT_FALSE(fused::can_run(x));
  }
  {
    const AutocastGuard autocast(at::kCPU, at::kBFloat16);
    EXPECT_TRUE(fused::can_run(x));
  }
  {
    CastLog log;
    const AutocastGuard autocast(at::kCPU, at::kHalf, AutocastOptions().log(&log));
    EXPECT_TRUE(fused::can_run(x)) << "a log changes no number";
    const AutocastGuard with_policy(at::kCPU, at::kHalf, AutocastOptions().policy(OpPolicy::preset("cpu")));
    EXPECT_FALSE(fused::can_run(x));
  }
  EXPECT_FALSE(fused::can_run(x.to(at::kDouble)));
}

}  // namespace
}  // namespace mezzo::encoder
