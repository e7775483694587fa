#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "encoder/cpu/block_ops.h"
#include "encoder/cuda/block_ops.h"
#include "encoder/dropout.h"

// The CPU's kernels, which have been compared with the specification, are
// what these are compared with.

namespace mezzo::encoder {
namespace {

const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

struct Shape {
  int64_t rows, columns;
};
const std::vector<Shape> kShapes = {{0, 8}, {1, 1}, {3, 3}, {5, 8}, {9, 100}, {17, 384}, {33, 30}, {2, 1030}};

/// float32 sums in another order; a half number may then be rounded to its neighbour.
void expect_near(const at::Tensor& a, const at::Tensor& b, const char* what) {
  ASSERT_EQ(a.scalar_type(), b.scalar_type()) << what;
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  const double relative = a.scalar_type() == at::kBFloat16 ? 0x1p-7 : a.scalar_type() == at::kHalf ? 0x1p-10 : 1e-5;
  EXPECT_TRUE(at::allclose(a.to(at::kDouble), b.to(at::kDouble), relative, 2e-5, /*equal_nan=*/true)) << what;
}

/// What both give: calls `check(compute(cpu), compute(gpu))`.
template <class Compute>
void with_both(const Compute& compute) {
  compute(cpu::kBlockOps, MEZZO_CUDA::kBlockOps);
}

at::Tensor unaligned(const at::Tensor& x) {
  return at::cat({at::zeros({1}, x.options()), x.flatten()}).narrow(0, 1, x.numel()).view(x.sizes());
}

/// The input of the CPU's backward: the numbers of the GPU's input, in float32.
Normalised in_float(const Normalised& of_gpu) { return {of_gpu.rows.to(at::kFloat), of_gpu.rstd}; }

class CudaRowOpsTest : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(11); }
};

TEST_F(CudaRowOpsTest, ResidualLayerNormAndItsGradientsEqualTheCpus) {
  for (const auto [rows, columns] : kShapes) {
    for (const auto product_dtype : kDtypes) {
      for (const auto residual_dtype : {at::kFloat, product_dtype}) {
        for (const bool has_numbers : {false, true}) {
          const auto product = unaligned(at::randn({rows, columns}).to(product_dtype)), bias = at::randn({columns});
          const auto residual = at::randn({rows, columns}).to(residual_dtype);
          const auto weight = at::rand({columns}) + 0.5, shift = at::randn({columns}).to(product_dtype);
          const auto numbers = has_numbers ? at::randperm(rows + 7).narrow(0, 0, rows) : at::Tensor();
          const DropoutSite site{has_numbers ? 0.3 : 0.0, {5, 6, 7}};
          const auto grad = at::randn({rows, columns}).to(residual_dtype) * 1e-3;
          Normalised of_gpu;  // which computes first
          const auto compute = [&](const BlockOps& ops) {
            Normalised normalised;
            auto output = ops.residual_layer_norm(product.clone(), bias, residual, {weight, shift, 1e-5}, site, numbers,
                                                  &normalised);
            of_gpu = of_gpu.rows.defined() ? in_float(of_gpu) : normalised;
            const auto found =
                ops.residual_layer_norm_backward(grad, of_gpu, weight, site, numbers, product_dtype, residual_dtype);
            const auto inference =
                ops.residual_layer_norm(product.clone(), bias, residual, {weight, shift, 1e-5}, site, numbers, nullptr);
            EXPECT_TRUE(at::equal(inference, output));
            return std::vector<at::Tensor>{output,
                                           normalised.rows.to(product_dtype),
                                           normalised.rstd,
                                           found.product,
                                           found.residual,
                                           found.bias,
                                           found.norm.weight,
                                           found.norm.bias};
          };
          const auto here = compute(MEZZO_CUDA::kBlockOps), there = compute(cpu::kBlockOps);
          for (size_t i = 0; i < here.size(); ++i) {
            if (columns > 1) {  // the variance of one column is 0, and 1 / 0.003 of rounding is left
              expect_near(here[i], there[i], std::to_string(i).c_str());
            }
          }
        }
      }
    }
  }
}

TEST_F(CudaRowOpsTest, EmbeddingsAndTheirGradientsEqualTheCpus) {
  for (const auto [rows, columns] : kShapes) {
    for (const auto dtype : kDtypes) {
      for (const bool has_types : {false, true}) {
        const auto word = at::randn({40, columns}).to(dtype), position = at::randn({12, columns}).to(dtype),
                   type = at::randn({2, columns}).to(dtype), weight = at::rand({columns}) + 0.5,
                   shift = at::randn({columns});
        const auto ids = at::randint(0, 40, {rows}), positions = at::arange(rows).remainder(12),
                   types = has_types ? at::randint(0, 2, {rows}) : at::Tensor();
        const DropoutSite site{has_types ? 0.2 : 0.0, {1, 2, 3}};
        const auto grad = at::randn({rows, columns}).to(dtype);
        Normalised of_gpu;
        const auto compute = [&](const BlockOps& ops) {
          Normalised normalised;
          auto output = ops.embedding_layer_norm(word, position, type, ids, positions, types, {weight, shift, 1e-5},
                                                 site, &normalised);
          of_gpu = of_gpu.rows.defined() ? in_float(of_gpu) : normalised;
          const auto found = ops.embedding_layer_norm_backward(grad, of_gpu, weight, site);
          return std::vector<at::Tensor>{output,    normalised.rows.to(dtype), normalised.rstd,
                                         found.sum, found.norm.weight,         found.norm.bias};
        };
        const auto here = compute(MEZZO_CUDA::kBlockOps), there = compute(cpu::kBlockOps);
        for (size_t i = 0; i < here.size() && columns > 1; ++i) {
          expect_near(here[i], there[i], std::to_string(i).c_str());
        }
        // In order, so bit for bit.
        const auto added = at::randn({rows, columns});
        auto table_here = at::randn({40, columns}), table_there = table_here.clone();
        MEZZO_CUDA::kBlockOps.add_rows_at(ids, added, table_here);
        cpu::kBlockOps.add_rows_at(ids, added, table_there);
        EXPECT_TRUE(at::equal(table_here, table_there));
      }
    }
  }
}

TEST_F(CudaRowOpsTest, RowsAreAddedToOthersAsOnTheCpu) {
  for (const auto [rows, columns] : kShapes) {
    for (const auto dtype : kDtypes) {
      const auto to = unaligned(at::randn({rows + 4, columns}).to(dtype)), added = at::randn({rows, columns}).to(dtype),
                 numbers = at::randperm(rows + 4).narrow(0, 0, rows);
      const auto here = unaligned(to), there = unaligned(to);
      MEZZO_CUDA::kBlockOps.add_to_rows(here, numbers, added);
      cpu::kBlockOps.add_to_rows(there, numbers, added);
      EXPECT_TRUE(at::equal(here, there)) << rows << " x " << columns;
      EXPECT_TRUE(at::equal(here.index_select(0, numbers), to.index_select(0, numbers) + added));
    }
  }
}

TEST_F(CudaRowOpsTest, WhatBlocksThatBeginWithTheirNormComputeEqualsTheCpus) {
  for (const auto [rows, columns] : kShapes) {
    for (const auto dtype : kDtypes) {
      // The last: without biases, numbers and dropout.
      for (const auto activation : {Activation::kGeluTanh, Activation::kRelu, Activation::kGelu}) {
        const bool is_plain = activation == Activation::kGelu;
        const auto vector = [&](int64_t size) {
          return is_plain ? at::Tensor() : unaligned(at::randn({size}).to(dtype));
        };
        const auto x = at::randn({rows, columns}), weight = at::rand({columns}) + 0.5, shift = vector(columns),
                   product = unaligned(at::randn({rows, columns}).to(dtype)), bias = vector(columns),
                   halves = unaligned((at::randn({rows, 2 * columns}) * 2).to(dtype)),
                   bias_of_halves = vector(2 * columns), grad = at::randn({rows, columns}), half_grad = grad.to(dtype),
                   numbers = is_plain ? at::Tensor() : at::randperm(rows + 7).narrow(0, 0, rows);
        const DropoutSite site{is_plain ? 0.0 : 0.3, {5, 6, 7}};
        Normalised of_gpu;
        const auto compute = [&, columns = columns](const BlockOps& of_device) {
          const BlockOps& ops = of_device;
          Normalised normalised;
          std::vector<at::Tensor> results;
          if (columns > 1) {  // the variance of one column is 0
            const auto normed = ops.layer_norm(x, {weight, shift, 1e-5}, dtype, &normalised);
            EXPECT_TRUE(at::equal(ops.layer_norm(x, {weight, shift, 1e-5}, dtype, nullptr), normed));
            of_gpu = of_gpu.rows.defined() ? in_float(of_gpu) : normalised;
            const auto of_norm =
                ops.layer_norm_backward(half_grad, of_gpu, weight, is_plain ? at::Tensor() : grad, at::kFloat);
            results = {normed,    normalised.rows.to(dtype), normalised.rstd,
                       of_norm.x, of_norm.norm.weight,       of_norm.norm.bias};
          }
          const auto outer = ops.residual_dropout_backward(grad, !is_plain, site, numbers, dtype);
          const auto gated =
              ops.gated_activation_backward(half_grad.clone(), halves, bias_of_halves, activation, site, numbers);
          EXPECT_TRUE(at::equal(gated.output, ops.gated_activation(halves, bias_of_halves, activation, site, numbers)));
          for (const auto& result : {ops.residual_dropout(product, bias, x, site, numbers), outer.product, outer.bias,
                                     gated.output, gated.product, gated.bias}) {
            results.push_back(result.defined() ? result : at::zeros({0}));
          }
          return results;
        };
        const auto here = compute(MEZZO_CUDA::kBlockOps), there = compute(cpu::kBlockOps);
        for (size_t i = 0; i < here.size(); ++i) {
          expect_near(here[i], there[i],
                      (std::to_string(rows) + " x " + std::to_string(columns) + ", " + std::to_string(i)).c_str());
        }
      }
    }
  }
}

TEST_F(CudaRowOpsTest, AnIdOutsideOfItsTableIsAnErrorAndReadsNothing) {
  const auto table = at::randn({4, 8}), vector = at::ones({8});
  const auto run = [&](int64_t id, int64_t position, int64_t type) {
    MEZZO_CUDA::kBlockOps.embedding_layer_norm(table, table, table, at::tensor({int64_t{1}, id}),
                                               at::tensor({position, int64_t{0}}), at::tensor({int64_t{0}, type}),
                                               {vector, vector, 1e-5}, {}, nullptr);
  };
  EXPECT_NO_THROW(run(3, 3, 3));
  EXPECT_THROW(run(4, 0, 0), std::out_of_range);
  EXPECT_THROW(run(-1, 0, 0), std::out_of_range);
  EXPECT_THROW(run(0, 4, 0), std::out_of_range);
  EXPECT_THROW(run(0, 0, std::numeric_limits<int64_t>::max()), std::out_of_range);
}

TEST_F(CudaRowOpsTest, ActivationsAndTheirGradientsEqualTheCpus) {
  for (const auto [rows, columns] : kShapes) {
    for (const auto dtype : kDtypes) {
      for (const auto activation : {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
        const auto product = unaligned((at::randn({rows, columns}) * 3).to(dtype)), bias = at::randn({columns});
        const auto grad = at::randn({rows, columns}).to(dtype);
        const auto compute = [&](const BlockOps& ops) {
          const auto found = ops.bias_activation_backward(grad.clone(), product, bias, activation);
          return std::vector<at::Tensor>{ops.bias_activation(product, bias, activation), found.product, found.output,
                                         found.bias};
        };
        const auto here = compute(MEZZO_CUDA::kBlockOps), there = compute(cpu::kBlockOps);
        for (size_t i = 0; i < here.size(); ++i) {
          expect_near(here[i], there[i], std::to_string(i).c_str());
        }
      }
    }
  }
}

TEST_F(CudaRowOpsTest, MasksOfPreNormBlocksEqualTheSpecificationsToTheBit) {
  for (const int64_t columns : {1, 3, 6, 32, 101}) {
    const auto ones = at::ones({40, columns}), numbers = at::randperm(40) + (int64_t{1} << 35);
    const DropoutSite site{0.4, {0x123456789ABCDEF, 8, 9}};
    const auto wanted = reference::dropout_of_rows(ones, numbers, site);
    const auto& ops = MEZZO_CUDA::kBlockOps;
    EXPECT_TRUE(at::equal(ops.residual_dropout_backward(ones, true, site, numbers, at::kFloat).product, wanted));
    EXPECT_TRUE(at::equal(ops.residual_dropout(ones, {}, at::zeros({40, columns}), site, numbers), wanted));
    const auto ones_of_both = at::ones({40, 2 * columns});  // relu(1) times a gate of 1
    EXPECT_TRUE(at::equal(ops.gated_activation(ones_of_both, {}, Activation::kRelu, site, numbers), wanted));
    const auto grads = ops.gated_activation_backward(ones.clone(), ones_of_both, {}, Activation::kRelu, site, numbers);
    EXPECT_TRUE(at::equal(grads.product, at::cat({wanted, wanted}, 1)));
  }
}

TEST_F(CudaRowOpsTest, GradientsOfOneHundredMillionthSurviveTheScale) {
  const auto product = at::randn({4, 64}), ones = at::ones({64}), none = at::zeros({64});
  const auto small = at::randn({4, 64}) * 1e-8, large = small * 65536;
  const auto gradient = [&](const at::Tensor& grad) {
    Normalised normalised;
    MEZZO_CUDA::kBlockOps.residual_layer_norm(product.clone(), none, product, {ones, none, 1e-12}, {}, {}, &normalised);
    return MEZZO_CUDA::kBlockOps.residual_layer_norm_backward(grad, normalised, ones, {}, {}, at::kHalf, at::kFloat);
  };
  const auto scaled = gradient(large);
  EXPECT_TRUE(at::equal(scaled.residual, gradient(small).residual * 65536));
  EXPECT_GT(scaled.product.ne(0).sum().item<int64_t>(), 250);  // of 256, which half holds at this scale
}

}  // namespace
}  // namespace mezzo::encoder
