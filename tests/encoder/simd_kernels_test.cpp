#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numbers>
#include <random>
#include <utility>
#include <vector>

#include "encoder/cpu/simd/kernels.h"
#include "kernels/cpu/simd/element_kernels.h"
#include "kernels/philox.h"

// Knows nothing of LibTorch, so that scripts/check_arm64.sh can run it: kernels of one instruction
// set against the same formulas in float64.

namespace mezzo::encoder::cpu {
namespace {

using Numbers = std::vector<float>;
using Exact = std::vector<double>;

class SimdKernelsTest : public testing::Test {
 protected:
  Numbers normal(int64_t count) {
    Numbers numbers(static_cast<size_t>(count));
    for (float& number : numbers) {
      number = std::normal_distribution<float>()(random_);
    }
    return numbers;
  }

  const SimdKernels& kernels_ = simd_kernels();

 private:
  std::mt19937 random_{1};
};

ConstSpan read(const Numbers& numbers) { return {numbers.data(), Element::kFloat}; }
Span write(Numbers& numbers) { return {numbers.data(), Element::kFloat}; }

/// @param roundings  how many, of numbers near 1, an element may have seen
void expect_close(const Numbers& mine, const Exact& right, int64_t roundings) {
  ASSERT_EQ(mine.size(), right.size());
  for (size_t i = 0; i < mine.size(); ++i) {
    ASSERT_NEAR(mine[i], right[i], static_cast<double>(roundings) * 0x1p-24 * std::max(1.0, std::fabs(right[i])))
        << "at " << i;
  }
}

double derivative(const std::function<double(double)>& function, double x) {
  return (function(x + 1e-5) - function(x - 1e-5)) / 2e-5;  // to 1e-10
}

TEST_F(SimdKernelsTest, DropWhatPhiloxsWordsSay) {
  constexpr int64_t kFirst = 1280, kSize = 1000;
  const Dropout dropout{.is_on = true, .threshold = 0x40000000, .scale = 4.0f / 3, .key = {0x123456789ABCDEF, 77, 9}};
  const auto x = normal(kFirst + kSize);
  auto mine = x, right = x;
  for (int64_t i = kFirst; i < kFirst + kSize; ++i) {
    const auto words = kernels::Philox::generate({static_cast<uint32_t>(i / 4), 0, dropout.key.step, dropout.key.site},
                                                 dropout.key.seed);
    right[i] = words[i % 4] >= dropout.threshold ? x[i] * dropout.scale : 0;
  }
  kernels_.dropout(read(x), write(mine), kFirst, kSize, dropout);
  EXPECT_EQ(mine, right);
}

TEST_F(SimdKernelsTest, ActivationsAreTheirFormulas) {
  const std::function<double(double)> formulas[] = {
      [](double x) { return x / 2 * std::erfc(-x / std::numbers::sqrt2); },
      [](double x) { return x / (1 + std::exp(-std::sqrt(8 / std::numbers::pi) * (x + 0.044715 * x * x * x))); },
      [](double x) { return std::fmax(x, 0); }};
  for (const auto kind : {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
    for (const int64_t columns : {1, 7, 64, 101}) {
      SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << ", columns " << columns);
      const int64_t rows = 3;
      const Numbers product = normal(rows * columns), bias = normal(columns), grad = normal(rows * columns);
      Numbers output(product.size()), grad_product(product.size()), again(product.size()), sums(bias.size());
      kernels_.bias_activation({read(product), bias.data(), kind, write(output)}, 0, rows, columns);
      kernels_.bias_activation_backward(
          {read(product), bias.data(), kind, read(grad), write(grad_product), write(again)}, 0, rows, columns,
          sums.data());
      Exact right(product.size()), right_grad(product.size()), right_sums(bias.size());
      for (size_t i = 0; i < right.size(); ++i) {
        const double x = product[i] + bias[i % bias.size()];  // rounded, as theirs
        const auto& formula = formulas[static_cast<int>(kind)];
        right[i] = formula(x);
        right_grad[i] = grad[i] * derivative(formula, x);
        right_sums[i % bias.size()] += right_grad[i];
      }
      expect_close(output, right, 8);
      expect_close(grad_product, right_grad, 64);  // the tanh form's slope is a difference
      expect_close(sums, right_sums, 3 * 64);
      EXPECT_EQ(again, output);
    }
  }
}

TEST_F(SimdKernelsTest, ResidualLayerNormIsItsFormula) {
  for (const int64_t columns : {1, 7, 64, 101}) {
    SCOPED_TRACE(testing::Message() << "columns " << columns);
    const int64_t rows = 3;
    const Numbers product = normal(rows * columns), bias = normal(columns), residual = normal(rows * columns),
                  weight = normal(columns), shift = normal(columns), grad = normal(rows * columns);
    Numbers output(product.size()), normalised(product.size()), rstd(rows);
    Numbers scratch(static_cast<size_t>(kernels_.row_scratch(columns)));
    const float eps = 0.5f;  // so that a row of one column is not a division by nearly 0
    kernels_.residual_layer_norm({read(product),
                                  bias.data(),
                                  read(residual),
                                  {weight.data(), shift.data(), eps},
                                  {},
                                  nullptr,
                                  write(output),
                                  normalised.data(),
                                  rstd.data()},
                                 0, rows, columns, scratch.data());
    Numbers grad_residual(product.size()), grad_product(product.size()), sums(3 * bias.size());
    kernels_.residual_layer_norm_backward({read(grad),
                                           normalised.data(),
                                           rstd.data(),
                                           weight.data(),
                                           {},
                                           nullptr,
                                           write(grad_residual),
                                           write(grad_product)},
                                          0, rows, columns, sums.data(), scratch.data());
    Exact right(product.size()), right_grad(product.size()), right_sums(sums.size());
    const auto n = static_cast<size_t>(columns);
    for (size_t first = 0; first < right.size(); first += n) {
      Exact x(n);
      double mean = 0, variance = 0, mean_grad = 0, mean_product = 0;
      for (size_t i = 0; i < n; ++i) {
        x[i] = double{product[first + i]} + bias[i] + residual[first + i];
        mean += x[i] / static_cast<double>(n);
      }
      for (double& value : x) {
        value -= mean;
        variance += value * value / static_cast<double>(n);
      }
      const double scale = 1 / std::sqrt(variance + eps);
      for (size_t i = 0; i < n; ++i) {
        x[i] *= scale;
        right[first + i] = x[i] * weight[i] + shift[i];
        const double weighted = double{grad[first + i]} * weight[i];
        mean_grad += weighted / static_cast<double>(n);
        mean_product += weighted * x[i] / static_cast<double>(n);
        right_sums[i] += grad[first + i] * x[i];
        right_sums[n + i] += grad[first + i];
      }
      for (size_t i = 0; i < n; ++i) {
        right_grad[first + i] = (double{grad[first + i]} * weight[i] - mean_grad - x[i] * mean_product) * scale;
        right_sums[2 * n + i] += right_grad[first + i];
      }
    }
    expect_close(output, right, 32);
    expect_close(grad_residual, right_grad, 64);
    expect_close(sums, right_sums, 3 * 64);
    EXPECT_EQ(grad_product, grad_residual) << "without dropout";
  }
}

TEST_F(SimdKernelsTest, HalfTypesAreReadAndWrittenAsFloat32IsRounded) {
  const auto& loops = kernels::cpu::element_kernels();
  const int64_t columns = 101;
  const Numbers bias = normal(columns), weight = normal(columns), numbers = normal(columns);
  for (const Element element : {Element::kBFloat16, Element::kHalf}) {
    std::vector<uint16_t> words(columns), mine(columns), right(columns);
    Numbers wide(columns), output(columns), scratch(static_cast<size_t>(kernels_.row_scratch(columns)));
    loops.from_float(numbers.data(), {words.data(), element}, columns);
    loops.to_float({words.data(), element}, wide.data(), columns);
    const auto run = [&](ConstSpan in, Span out) {
      kernels_.residual_layer_norm(
          {in, bias.data(), in, {weight.data(), bias.data(), 1e-5f}, {}, nullptr, out, nullptr, nullptr}, 0, 1, columns,
          scratch.data());
    };
    run({words.data(), element}, {mine.data(), element});
    run(read(wide), write(output));
    loops.from_float(output.data(), {right.data(), element}, columns);
    EXPECT_EQ(mine, right) << static_cast<int>(element);
  }
}

TEST_F(SimdKernelsTest, GatedActivationIsItsFormula) {
  const auto gelu = [](double x) { return x / 2 * std::erfc(-x / std::numbers::sqrt2); };
  const auto relu = [](double x) { return x > 0 ? x : 0; };
  using Formula = std::function<double(double)>;
  const std::pair<Activation, Formula> kinds[] = {{Activation::kGelu, gelu}, {Activation::kRelu, relu}};
  for (const auto& [columns, kind] :
       {std::pair(1, 0), std::pair(7, 0), std::pair(64, 0), std::pair(101, 0), std::pair(7, 1), std::pair(101, 1)}) {
    SCOPED_TRACE(testing::Message() << "columns " << columns << ", activation " << kind);
    const auto& [activation, formula] = kinds[kind];
    const int64_t rows = 3;
    const Numbers product = normal(2 * rows * columns), bias = normal(2 * columns), grad = normal(rows * columns);
    Numbers output(grad.size()), again(grad), grad_product(product.size()), sums(bias.size()),
        scratch(static_cast<size_t>(kernels_.row_scratch(columns)));
    GatedActivation op{read(product), bias.data(), activation, {}, nullptr, write(output)};
    kernels_.gated_activation(op, 0, rows, columns, scratch.data());
    op.output = write(again);  // in the gradient's memory
    kernels_.gated_activation_backward({op, read(again), write(grad_product)}, 0, rows, columns, sums.data(),
                                       scratch.data());
    Exact right(output.size()), right_grad(product.size()), right_sums(bias.size());
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < columns; ++i) {
        const int64_t at = 2 * row * columns + i, gate_at = at + columns, out = row * columns + i;
        const double x = product[at] + bias[i], gate = product[gate_at] + bias[columns + i];  // rounded, as theirs
        right[out] = formula(x) * gate;
        right_grad[at] = grad[out] * gate * derivative(formula, x);
        right_grad[gate_at] = grad[out] * formula(x);
        right_sums[i] += right_grad[at];
        right_sums[columns + i] += right_grad[gate_at];
      }
    }
    expect_close(output, right, 32);
    expect_close(grad_product, right_grad, 64);
    expect_close(sums, right_sums, 3 * 64);
    EXPECT_EQ(again, output);
  }
}

/// Lengths of one tile of keys and of several, with the options of an attention.
struct AttentionKind {
  int64_t queries, keys, size, before, after;
  float soft_cap = 0;
  bool turns = false;
};

std::vector<AttentionKind> attention_kinds() {
  constexpr int64_t kAll = 4000;
  std::vector<AttentionKind> kinds;
  for (const int64_t queries : {1, 5, 19}) {
    for (const int64_t keys : {1, 6, 33}) {
      for (const int64_t size : {7, 16, 32}) {
        kinds.push_back({queries, keys, size, kAll, kAll});
        if (queries <= keys && size % 2 == 0) {
          kinds.push_back({queries, keys, size, 4, 4, 0, true});
          kinds.push_back({queries, keys, size, kAll, 0, 0.7F, true});
        }
      }
    }
  }
  const std::vector<AttentionKind> of_several_tiles = {{1, kKeyTile + 1, 16, kAll, kAll},
                                                       {40, 2 * kKeyTile + 76, 7, kAll, kAll, 1.5F},
                                                       {kKeyTile + 70, kKeyTile + 70, 6, kAll, 0, 0, true},
                                                       {kKeyTile + 70, kKeyTile + 70, 6, 40, 40, 0, true},
                                                       {kKeyTile + 5, kKeyTile + 5, 6, kAll, kAll}};
  kinds.insert(kinds.end(), of_several_tiles.begin(), of_several_tiles.end());
  return kinds;
}

TEST_F(SimdKernelsTest, AttentionIsItsFormula) {
  for (const AttentionKind& kind : attention_kinds()) {
    const int64_t queries = kind.queries, keys = kind.keys, size = kind.size, before = kind.before, after = kind.after;
    const float soft_cap = kind.soft_cap;
    const bool turns = kind.turns;
    SCOPED_TRACE(testing::Message() << queries << " queries, " << keys << " keys, head size " << size << ", sees "
                                    << before << " before and " << after << " after, cap " << soft_cap);
    const int64_t stride = size + 3;
    const Numbers angles = normal(keys * size / 2);
    Numbers rotary;
    for (int64_t i = 0; i < keys; ++i) {
      for (const auto function :
           {static_cast<double (*)(double)>(std::cos), static_cast<double (*)(double)>(std::sin)}) {
        for (int64_t d = 0; d < size / 2; ++d) {
          rotary.push_back(static_cast<float>(function(angles[i * (size / 2) + d])));
        }
      }
    }
    const Numbers q = normal(queries * stride), k = normal(keys * stride), v = normal(keys * stride),
                  grad = normal(queries * stride);
    Numbers output(q.size()), log_sum_exp(static_cast<size_t>(queries));
    Numbers scratch(static_cast<size_t>(
        kernels_.attention_scratch(queries, keys, size, /*relative_rows=*/0, /*values_are_keys=*/false)));
    const float scale = 1 / std::sqrt(static_cast<float>(size));
    const AttentionTile tile{.query = read(q),
                             .key = read(k),
                             .value = read(v),
                             .values_are_keys = false,
                             .query_stride = stride,
                             .key_stride = stride,
                             .value_stride = stride,
                             .query_bias = nullptr,
                             .key_bias = nullptr,
                             .value_bias = nullptr,
                             .num_queries = queries,
                             .num_keys = keys,
                             .head_size = size,
                             .scale = scale,
                             .soft_cap = soft_cap,
                             .dropout = {},
                             .first_query_number = 0,
                             .query_number_step = 1,
                             .rotary = turns ? rotary.data() : nullptr,
                             .keys_before = before,
                             .keys_after = after,
                             .output = write(output),
                             .output_stride = stride,
                             .log_sum_exp = log_sum_exp.data(),
                             .weight_sums = nullptr};
    kernels_.attention(tile, scratch.data());
    Numbers grad_q(q.size()), grad_k(k.size()), grad_v(v.size());
    kernels_.attention_backward({.forward = tile,
                                 .grad_output = read(grad),
                                 .output = read(output),
                                 .grad_weight_sums = nullptr,
                                 .grad_query = write(grad_q),
                                 .grad_key = write(grad_k),
                                 .grad_value = write(grad_v),
                                 .sums = nullptr,
                                 .sum_stride = 0},
                                scratch.data());

    const auto dot = [&](const auto& a, int64_t row, const auto& b, int64_t other) {
      double sum = 0;
      for (int64_t d = 0; d < size; ++d) {
        sum += double{a[row * stride + d]} * b[other * stride + d];
      }
      return sum;
    };
    // Rows turned by their places; sign -1 turns them back.
    const auto turned = [&](const auto& from, int64_t rows, double sign) {
      Exact to(from.begin(), from.end());
      for (int64_t i = 0; i < rows && turns; ++i) {
        for (int64_t d = 0; d < size / 2; ++d) {
          const double c = rotary[i * size + d], s = sign * rotary[i * size + size / 2 + d];
          const double x = from[i * stride + d], y = from[i * stride + size / 2 + d];
          to[i * stride + d] = x * c - y * s;
          to[i * stride + size / 2 + d] = y * c + x * s;
        }
      }
      return to;
    };
    const Exact turned_q = turned(q, queries, 1), turned_k = turned(k, keys, 1);
    Exact right(q.size()), right_q(q.size()), right_k(k.size()), right_v(v.size());
    for (int64_t i = 0; i < queries; ++i) {
      Exact weight(keys), slope(keys), of_cap(keys, 1);
      double total = 0, mean_slope = 0;
      for (int64_t j = std::max<int64_t>(0, i - before); j < std::min(keys, i + after + 1); ++j) {
        double score = dot(turned_q, i, turned_k, j) * scale;
        if (soft_cap > 0) {
          const double t = std::tanh(score / soft_cap);
          score = soft_cap * t;
          of_cap[j] = 1 - t * t;
        }
        total += weight[j] = std::exp(score);
      }
      for (int64_t j = 0; j < keys; ++j) {
        weight[j] /= total;
        slope[j] = weight[j] == 0 ? 0 : dot(grad, i, v, j);
        mean_slope += weight[j] * slope[j];
      }
      for (int64_t j = 0; j < keys; ++j) {
        if (weight[j] == 0) {
          continue;
        }
        const double grad_score = weight[j] * (slope[j] - mean_slope) * of_cap[j] * scale;
        for (int64_t d = 0; d < size; ++d) {
          right[i * stride + d] += weight[j] * v[j * stride + d];
          right_q[i * stride + d] += grad_score * turned_k[j * stride + d];
          right_k[j * stride + d] += grad_score * turned_q[i * stride + d];
          right_v[j * stride + d] += weight[j] * grad[i * stride + d];
        }
      }
    }
    // A score has seen a rounding a column, and sums one a key or query.
    expect_close(output, right, size + keys);
    expect_close(grad_q, turned(right_q, queries, -1), 4 * (size + keys));
    expect_close(grad_k, turned(right_k, keys, -1), 4 * (size + queries));
    expect_close(grad_v, right_v, 4 * (size + queries));
  }
}

TEST_F(SimdKernelsTest, PeakLoopsDoAsManyOperationsAsTheySay) {
  for (const PeakLoop& loop : {kernels_.peak->float32, kernels_.peak->bfloat16, kernels_.peak->int8}) {
    for (const int64_t rounds : {1, 7}) {
      const double multiplications = loop.run == nullptr ? 0 : loop.run(rounds);
      EXPECT_EQ(2 * multiplications, loop.operations_of_a_round * static_cast<double>(rounds));
    }
  }
}

}  // namespace
}  // namespace mezzo::encoder::cpu
