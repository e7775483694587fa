#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cuda/host_block.h"
#include "encoder/cpu/block_ops.h"
#include "encoder/cuda/block_ops.h"
#include "encoder/dropout.h"

// Values and gradients against the specification in float64, which gets the same inputs.

namespace mezzo::encoder {
namespace {

constexpr double kEps = 0x1p-24;  // what rounding a float32 once changes at most, relative to it
const std::vector<int64_t> kRows = {0, 1, 5, 33}, kColumns = {1, 3, 8, 32, 100, 384, 768, 1030};
const std::vector<std::pair<at::ScalarType, at::ScalarType>> kMixtures = {
    {at::kFloat, at::kFloat}, {at::kBFloat16, at::kFloat}, {at::kHalf, at::kFloat},   {at::kBFloat16, at::kBFloat16},
    {at::kHalf, at::kHalf},   {at::kFloat, at::kBFloat16}, {at::kHalf, at::kBFloat16}};

namespace gpu_kernels = kernels::MEZZO_CUDA;

const BlockOps& gpu() { return MEZZO_CUDA::kBlockOps; }

/// Random numbers, which begin at an aligned address or `offset` elements behind it.
at::Tensor randn(at::IntArrayRef sizes, at::ScalarType dtype, int64_t offset) {
  const auto values = at::randn(sizes).to(dtype);
  return at::cat({at::zeros({offset}, values.options()), values.flatten()})
      .narrow(0, offset, values.numel())
      .view(sizes);
}

at::Tensor leaf(const at::Tensor& x) { return x.to(at::kDouble).requires_grad_(); }

double largest(const at::Tensor& x) { return x.numel() == 0 ? 0 : x.abs().max().item<double>(); }

/// What rounding to a dtype changes at most, relative to a number.
double rounding_of(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 0x1p-8 : dtype == at::kHalf ? 0x1p-11 : kEps;
}

/// |found - wanted| is at most `error`, and what rounding to the dtype of `found` adds.
void expect_near(const at::Tensor& found, const at::Tensor& wanted, double error, const std::string& what) {
  ASSERT_EQ(found.sizes(), wanted.sizes()) << what;
  const auto dtype = found.scalar_type();
  const double rounding = rounding_of(dtype);
  const double of_smallest = dtype == at::kHalf ? 0x1p-25 : 0;  // half of the distance of denormal numbers
  const auto excess = (found.to(at::kDouble) - wanted).abs() - wanted.abs() * rounding * (1 + kEps);
  EXPECT_TRUE(excess.le(error * (1 + rounding) + of_smallest).all().item<bool>())
      << what << ": " << largest(found.to(at::kDouble) - wanted) << " apart where " << error << " is allowed";
}

/// How exact a layer norm of float32 rows can be. A sum x of three terms and its mean are off by
/// few roundings of x, which rstd then makes larger.
struct NormErrors {
  /// @param sum  [T, H] float64: the input of the norm
  /// @param kept_dtype  of the normalised rows that backward gets
  NormErrors(
      const at::Tensor& sum, double eps, const at::Tensor& grad, const at::Tensor& weight, at::ScalarType kept_dtype) {
    const auto deviation = sum - sum.mean(1, true);
    rstd = (deviation.square().mean(1) + eps).rsqrt();
    rows = deviation * rstd.unsqueeze(1);
    normalised = 12 * kEps * (largest(sum) * largest(rstd) + largest(rows));
    output = normalised * largest(weight) + 4 * kEps;
    // A gradient is rstd times g - mean(g) - n * mean(g * n), of g = grad * weight,
    // with n off by `kept`.
    const double kept = normalised + (kept_dtype == at::kFloat ? 0 : rounding_of(kept_dtype) * largest(rows));
    const double g = largest(grad) * largest(weight), n = std::max(1.0, largest(rows));
    gradient = largest(rstd) * g * (4 * n * kept + 12 * kEps * (1 + n * n) + n * n * kept);
    of_rstd = (12 * kEps + normalised) * largest(rstd);
    const double terms = static_cast<double>(sum.size(0)) + 1;
    weight_sum = terms * largest(grad) * (kept + terms * kEps * n);
    bias_sum = terms * terms * kEps * largest(grad);
    product_sum = terms * (gradient + terms * kEps * largest(rstd) * g * (1 + n * n));
  }
  at::Tensor rows, rstd;
  double normalised, output, gradient, of_rstd, weight_sum, bias_sum, product_sum;
};

class CudaRowOpsSpecificationTest : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(3); }
};

TEST_F(CudaRowOpsSpecificationTest, ResidualLayerNormAndAllItsGradients) {
  size_t number = 0;
  for (const int64_t rows : kRows) {
    for (const int64_t columns : kColumns) {
      for (const double p : {0.0, 0.3}) {
        for (const bool has_numbers : {false, true}) {
          const auto [product_dtype, residual_dtype] = kMixtures[number++ % kMixtures.size()];
          const int64_t offset = static_cast<int64_t>(number % 2);
          const auto what = std::to_string(rows) + " x " + std::to_string(columns) + " " + toString(product_dtype) +
                            " + " + toString(residual_dtype) + (p > 0 ? " dropout" : "") +
                            (has_numbers ? " numbers " : " ");
          const auto product = randn({rows, columns}, product_dtype, offset),
                     residual = randn({rows, columns}, residual_dtype, offset),
                     bias = randn({columns}, product_dtype, offset), shift = randn({columns}, at::kFloat, offset),
                     weight = randn({columns}, residual_dtype, offset);
          const auto numbers = has_numbers ? at::randperm(rows + 7).narrow(0, 0, rows) : at::Tensor();
          const DropoutSite site{p, {5, 6, 7}};
          const double eps = 1e-5;
          // On one multiprocessor, warps take several rows in backward.
          const gpu_kernels::WithDeviceLimits limits(
              {.multiprocessors = number % 2 == 0 ? 1 : 132, .shared_bytes = 64 * 1024});
          Normalised normalised;
          const auto output = gpu().residual_layer_norm(product.clone(), bias, residual, {weight, shift, eps}, site,
                                                        numbers, &normalised);
          EXPECT_EQ(output.scalar_type(), at::promote_types(product_dtype, residual_dtype));
          const auto inference =
              gpu().residual_layer_norm(product.clone(), bias, residual, {weight, shift, eps}, site, numbers, nullptr);
          EXPECT_TRUE(at::equal(inference, output)) << what;
          const auto grad = randn({rows, columns}, output.scalar_type(), offset);
          const auto found = gpu().residual_layer_norm_backward(grad, normalised, weight, site, numbers, product_dtype,
                                                                residual_dtype);

          const auto of_product = leaf(product), of_residual = leaf(residual), of_bias = leaf(bias),
                     of_weight = leaf(weight), of_shift = leaf(shift);
          const auto x = of_product + of_bias;
          const auto wanted = reference::residual_layer_norm(x, of_residual, {of_weight, of_shift, eps}, site, numbers);
          wanted.backward(grad.to(at::kDouble));
          const auto dropped = has_numbers ? reference::dropout_of_rows(x, numbers, site) : reference::dropout(x, site);
          const NormErrors errors((dropped + of_residual).detach(), eps, grad.to(at::kDouble), of_weight.detach(),
                                  product_dtype);
          EXPECT_EQ(normalised.rows.scalar_type(), product_dtype);
          if (output.scalar_type() == product_dtype) {
            EXPECT_FALSE(normalised.copy.defined());
          } else {
            EXPECT_TRUE(at::equal(normalised.copy, output.to(product_dtype))) << what;
          }
          expect_near(output, wanted.detach(), errors.output, what + "output");
          expect_near(normalised.rows, errors.rows, errors.normalised, what + "normalised");
          expect_near(normalised.rstd, errors.rstd, errors.of_rstd, what + "rstd");
          const double scale = 1 / (1 - p);
          expect_near(found.product, of_product.grad(), scale * errors.gradient, what + "product");
          expect_near(found.residual, of_residual.grad(), errors.gradient, what + "residual");
          expect_near(found.bias, of_bias.grad(), scale * errors.product_sum, what + "bias");
          expect_near(found.norm.weight, of_weight.grad(), errors.weight_sum, what + "weight");
          expect_near(found.norm.bias, of_shift.grad(), errors.bias_sum, what + "shift");
        }
      }
    }
  }
}

TEST_F(CudaRowOpsSpecificationTest, EmbeddingsAndAllTheirGradients) {
  size_t number = 0;
  for (const int64_t rows : kRows) {
    for (const int64_t columns : kColumns) {
      for (const double p : {0.0, 0.3}) {
        for (const bool has_types : {false, true}) {
          const auto [dtype, type_dtype] = kMixtures[number++ % kMixtures.size()];
          const int64_t offset = static_cast<int64_t>(number % 2);
          const auto what = std::to_string(rows) + " x " + std::to_string(columns) + " " + toString(dtype) +
                            (p > 0 ? " dropout" : "") + (has_types ? " types " : " ");
          const auto word = randn({9, columns}, dtype, offset), position = randn({12, columns}, dtype, offset),
                     token_type = randn({2, columns}, type_dtype, offset), weight = randn({columns}, dtype, offset),
                     shift = randn({columns}, at::kFloat, offset), grad = randn({rows, columns}, dtype, offset);
          const auto ids = at::randint(9, {rows}, at::kLong), positions = at::arange(rows).remainder(12),
                     types = has_types ? at::randint(2, {rows}, at::kLong) : at::Tensor();
          const DropoutSite site{p, {1, 2, 3}};
          const double eps = 1e-5;
          Normalised normalised;
          const auto output = gpu().embedding_layer_norm(word, position, token_type, ids, positions, types,
                                                         {weight, shift, eps}, site, &normalised);
          EXPECT_EQ(output.scalar_type(), dtype);
          EXPECT_TRUE(at::equal(output, gpu().embedding_layer_norm(word, position, token_type, ids, positions, types,
                                                                   {weight, shift, eps}, site, nullptr)))
              << what;
          const auto found = gpu().embedding_layer_norm_backward(grad, normalised, weight, site);

          const auto of_word = leaf(word), of_position = leaf(position), of_type = leaf(token_type),
                     of_weight = leaf(weight), of_shift = leaf(shift);
          const auto wanted = reference::embedding_layer_norm(of_word, of_position, of_type, ids, positions, types,
                                                              {of_weight, of_shift, eps}, site);
          wanted.backward(grad.to(at::kDouble));
          const auto type_rows = has_types ? of_type.index_select(0, types) : of_type.narrow(0, 0, 1);
          const auto sum = of_word.index_select(0, ids) + of_position.index_select(0, positions) + type_rows;
          const NormErrors errors(sum.detach(), eps, grad.to(at::kDouble) / (1 - p), of_weight.detach(), dtype);
          expect_near(output, wanted.detach(), errors.output / (1 - p), what + "output");
          expect_near(normalised.rows, errors.rows, errors.normalised, what + "normalised");
          expect_near(normalised.rstd, errors.rstd, errors.of_rstd, what + "rstd");
          expect_near(found.norm.weight, of_weight.grad(), errors.weight_sum, what + "weight");
          expect_near(found.norm.bias, of_shift.grad(), errors.bias_sum, what + "shift");
          const auto expect_table = [&](const at::Tensor& indices, const at::Tensor& of_table, const char* name) {
            auto table = at::zeros(of_table.sizes());
            gpu().add_rows_at(indices, found.sum, table);
            expect_near(table, of_table.grad(), errors.product_sum, what + name);
          };
          expect_table(ids, of_word, "words");
          expect_table(positions, of_position, "positions");
          expect_table(has_types ? types : at::zeros({rows}, at::kLong), of_type, "types");
        }
      }
    }
  }
}

TEST_F(CudaRowOpsSpecificationTest, ActivationsAndAllTheirGradients) {
  size_t number = 0;
  for (const auto activation : {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
    for (const int64_t rows : kRows) {
      for (const int64_t columns : kColumns) {
        for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
          const int64_t offset = static_cast<int64_t>(++number % 2);
          const auto what = std::to_string(rows) + " x " + std::to_string(columns) + " " + toString(dtype) + " " +
                            std::to_string(static_cast<int>(activation)) + " ";
          const auto product = randn({rows, columns}, dtype, offset) * 3, bias = randn({columns}, dtype, offset),
                     grad = randn({rows, columns}, dtype, offset);
          const auto of_product = leaf(product), of_bias = leaf(bias), x = of_product + of_bias;
          const auto wanted = activation == Activation::kRelu
                                  ? at::relu(x)
                                  : at::gelu(x, activation == Activation::kGelu ? "none" : "tanh");
          wanted.backward(grad.to(at::kDouble));
          const auto output = gpu().bias_activation(product, bias, activation);
          const auto found = gpu().bias_activation_backward(grad.clone(), product, bias, activation);
          EXPECT_TRUE(at::equal(found.output, output)) << what;
          // x is rounded, and slopes are sums of few terms of size 1, of which 1 - tanh^2
          // is multiplied by up to 9.
          const double of_value = 8 * kEps * (1 + largest(x)), of_slope = 24 * kEps * (1 + largest(x)) * largest(grad);
          expect_near(output, wanted.detach(), of_value, what + "output");
          expect_near(found.product, of_product.grad(), of_slope, what + "product");
          const double terms = static_cast<double>(rows) + 1;
          expect_near(found.bias, of_bias.grad(), terms * (of_slope + terms * kEps * 1.2 * largest(grad)),
                      what + "bias");
        }
      }
    }
  }
}

TEST_F(CudaRowOpsSpecificationTest, MasksEqualTheSpecificationsToTheBit) {
  for (const int64_t columns : {1, 3, 6, 32, 101}) {
    for (const int64_t first_row : {int64_t{0}, int64_t{1} << 31, int64_t{1} << 35}) {  // counters of more than 32 bits
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const auto rows = at::randn({7, columns}), ones = at::ones({columns}), numbers = at::randperm(7) + first_row;
        const DropoutSite site{0.4, {0x123456789ABCDEF, 8, 9}};
        const Normalised normalised{rows, at::ones({7})};
        const auto found = gpu().residual_layer_norm_backward(at::randn({7, columns}), normalised, ones, site, numbers,
                                                              dtype, at::kFloat);
        const auto wanted = reference::dropout_of_rows(found.residual, numbers, site);
        EXPECT_TRUE(at::equal(found.product, wanted.to(dtype))) << columns << " " << first_row;
        EXPECT_EQ(found.product.eq(0).sum().item<int64_t>(), wanted.eq(0).sum().item<int64_t>());
      }
    }
  }
}

/// Of the CPU, too, whose kernels others are compared with.
class RowOpsWithoutNumbersTest : public testing::TestWithParam<const BlockOps*> {
 protected:
  void SetUp() override { at::manual_seed(3); }
};

TEST_P(RowOpsWithoutNumbersTest, InfinityAndNaNReachWhatDependsOnThem) {
  const BlockOps& ops = *GetParam();
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto finite = [](const at::Tensor& x) { return x.isfinite(); };
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const float value : {inf, -inf, nan}) {
      const auto residual = at::randn({40, 132}).to(dtype), weight = at::rand({132}) + 0.5, shift = at::randn({132});
      auto product = at::randn({40, 132}).to(dtype);
      for (int64_t row = 0; row < 40; row += 2) {
        product[row][row + 91] = value;
      }
      // Dropout takes some of them away.
      const DropoutSite site{0.5, {4, 5, 6}};
      Normalised normalised;
      const auto output = ops.residual_layer_norm(product.clone(), at::zeros({132}), residual, {weight, shift, 1e-5},
                                                  site, {}, &normalised);
      const auto wanted =
          reference::residual_layer_norm(product.to(at::kDouble), residual.to(at::kDouble),
                                         {weight.to(at::kDouble), shift.to(at::kDouble), 1e-5}, site, {});
      const auto rows = finite(wanted).all(1);
      EXPECT_GT(rows.sum().item<int64_t>(), 20);
      EXPECT_LT(rows.sum().item<int64_t>(), 40);
      EXPECT_TRUE(at::equal(finite(output).all(1), rows));
      EXPECT_TRUE(at::equal(finite(output).any(1), rows));

      // Through a gradient, into its row, and into the sums of its column, or with it of all.
      auto grad = at::randn({40, 132}).to(dtype);
      grad[3][7] = value;
      ops.residual_layer_norm(residual.clone(), shift, residual, {weight, shift, 1e-5}, {}, {}, &normalised);
      const auto found = ops.residual_layer_norm_backward(grad, normalised, weight, {}, {}, dtype, dtype);
      auto others = at::ones({40}, at::kBool), columns = at::ones({132}, at::kBool);
      others[3] = false;
      columns[7] = false;
      EXPECT_TRUE(at::equal(finite(found.product).any(1), others));
      EXPECT_TRUE(at::equal(finite(found.residual).all(1), others));
      EXPECT_FALSE(finite(found.bias).any().item<bool>());
      EXPECT_TRUE(at::equal(finite(found.norm.weight), columns));
      EXPECT_TRUE(at::equal(finite(found.norm.bias), columns));

      for (const auto activation : {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
        const auto of_grad = ops.bias_activation_backward(grad.clone(), residual.abs(), weight, activation);
        EXPECT_TRUE(at::equal(finite(of_grad.product), finite(grad)));
        EXPECT_TRUE(at::equal(finite(of_grad.bias), columns));
        const auto bad = at::full({1, 4}, value).to(dtype), zeros = at::zeros({4});
        const auto values = ops.bias_activation(bad, zeros, activation);
        const auto of = activation == Activation::kRelu
                            ? at::relu(bad.to(at::kDouble))
                            : at::gelu(bad.to(at::kDouble), activation == Activation::kGelu ? "none" : "tanh");
        EXPECT_TRUE(at::equal(finite(values), finite(of))) << static_cast<int>(activation) << value << values << of;
      }
    }
  }
}

/// Where its specification in float64 is infinity or NaN. Which of them may differ: a GELU of -infinity is
/// -infinity by the kernels of CPUs, and NaN by LibTorch's.
void expect_not_finite_alike(const at::Tensor& found, const at::Tensor& wanted, const char* what) {
  EXPECT_TRUE(at::equal(found.isfinite(), wanted.isfinite()))
      << what << found.isfinite().sum() << wanted.isfinite().sum();
}

TEST_P(RowOpsWithoutNumbersTest, WhatIsDroppedIsZeroWhateverItWas) {
  const BlockOps& ops = *GetParam();
  const DropoutSite site{0.5, {4, 5, 6}};
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto with = [](float value, at::IntArrayRef sizes, at::ScalarType dtype) {
    auto values = at::randn(sizes);
    values.masked_fill_(at::rand(sizes) < 0.1, value);
    return values.to(dtype);
  };
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const float value : {inf, -inf, nan}) {
      SCOPED_TRACE(testing::Message() << toString(dtype) << " " << value);
      const auto rows = with(value, {40, 132}, dtype), residual = at::randn({40, 132}), bias = at::randn({132});
      const auto exact = rows.to(at::kDouble);
      const auto dropped = reference::dropout(exact + bias, site), dropped_grad = reference::dropout(exact, site);
      expect_not_finite_alike(ops.residual_dropout(rows, bias, residual, site, {}), dropped + residual, "sum ");
      const auto outer = ops.residual_dropout_backward(rows, true, site, {}, dtype);
      expect_not_finite_alike(outer.product, dropped_grad, "its gradient ");
      expect_not_finite_alike(outer.bias, dropped_grad.sum(0), "its bias's ");

      const auto halves = with(value, {40, 264}, dtype), grad = with(value, {40, 132}, dtype);
      for (const auto activation : {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
        const auto of_halves = leaf(halves.nan_to_num(1, 1, 1).abs()), parts = halves.to(at::kDouble);
        const auto activated = [&](const at::Tensor& x) {
          return activation == Activation::kRelu ? at::relu(x)
                                                 : at::gelu(x, activation == Activation::kGelu ? "none" : "tanh");
        };
        const auto gated = [&](const at::Tensor& x) {
          return reference::dropout(activated(x.chunk(2, 1)[0]) * x.chunk(2, 1)[1], site);
        };
        const auto wanted = gated(parts);
        expect_not_finite_alike(ops.gated_activation(halves, {}, activation, site, {}), wanted, "gated ");
        const auto again = ops.gated_activation_backward(grad.clone(), halves, {}, activation, site, {});
        expect_not_finite_alike(again.output, wanted, "gated again ");
        // Of finite halves, because 0 times infinity is NaN; above 0, because no slope is 0 there.
        gated(of_halves).backward(grad.to(at::kDouble));
        const auto found =
            ops.gated_activation_backward(grad.clone(), of_halves.detach().to(dtype), {}, activation, site, {});
        expect_not_finite_alike(found.product, of_halves.grad(), "gated's gradient ");
      }

      // Norms make all of a row NaN, if anything of it is not finite.
      const auto ones = at::ones({132}), numbers = at::arange(40), others = residual.to(dtype);
      const auto normed = [&](const at::Tensor& x) { return at::layer_norm(x, {132}, {}, {}, 1e-5); };
      expect_not_finite_alike(
          ops.embedding_layer_norm(rows, others, others, numbers, numbers, {}, {ones, bias, 1e-5}, site, nullptr),
          reference::dropout(normed(exact), site), "embeddings ");
      Normalised normalised;
      ops.embedding_layer_norm(others, others, others, numbers, numbers, {}, {ones, bias, 1e-5}, site, &normalised);
      expect_not_finite_alike(ops.embedding_layer_norm_backward(rows, normalised, ones, site).norm.bias,
                              dropped_grad.sum(0), "embeddings' bias's ");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         RowOpsWithoutNumbersTest,
                         testing::Values(&MEZZO_CUDA::kBlockOps, &cpu::kBlockOps),
                         [](const auto& test) { return test.index == 0 ? "Gpu" : "Cpu"; });

TEST_F(CudaRowOpsSpecificationTest, LongSegmentsAreAddedInTheOrderOfTheCpu) {
  for (const int64_t columns : {1, 8, 129, 300}) {
    for (const int64_t rows : {127, 128, 129, 700}) {
      const auto indices = at::randint(2, {rows}, at::kLong) * 3, added = at::randn({rows, columns});
      auto here = at::randn({5, columns}), there = here.clone();
      gpu().add_rows_at(indices, added, here);
      cpu::kBlockOps.add_rows_at(indices, added, there);
      EXPECT_TRUE(at::equal(here, there)) << rows << " x " << columns;
    }
  }
}

TEST_F(CudaRowOpsSpecificationTest, SmallGradientsSurviveTheScaleAndTheSameInputsGiveTheSameBits) {
  const auto grad = (at::randn({40, 36}) * 1e-8 * 65536).to(at::kHalf);
  const auto rows = at::randn({40, 36}), weight = at::rand({36}) + 0.5;
  const Normalised normalised{rows, at::rand({40}) + 0.5};
  const DropoutSite site{0.1, {7, 8, 9}};
  const auto compute = [&] {
    const auto a = gpu().residual_layer_norm_backward(grad, normalised, weight, site, {}, at::kHalf, at::kHalf);
    const auto b = gpu().embedding_layer_norm_backward(grad, normalised, weight, site);
    const auto c = gpu().bias_activation_backward(grad.clone(), rows.abs().to(at::kHalf), weight, Activation::kGelu);
    return std::vector<at::Tensor>{a.residual,    b.sum,       c.product,     a.product,   a.bias,
                                   a.norm.weight, a.norm.bias, b.norm.weight, b.norm.bias, c.bias};
  };
  const auto first = compute(), second = compute();
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(at::equal(first[i], second[i])) << i;
    if (i < 3) {
      EXPECT_GT(first[i].ne(0).sum().item<int64_t>(), first[i].numel() * 98 / 100) << i;
    }
  }
}

}  // namespace
}  // namespace mezzo::encoder
