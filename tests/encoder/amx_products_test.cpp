#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "encoder/cpu/simd/kernels.h"
#include "encoder/expected_product.h"
#include "encoder/int8_weights.h"
#include "kernels/cpu/simd/instruction_set.h"
#include "kernels/cpu/tensor_spans.h"

namespace mezzo::encoder::cpu {

namespace avx512_amx {
extern const ProductKernels product_kernels;
extern const Int8Kernels int8_kernels;
extern const PeakLoops peak_loops;
}  // namespace avx512_amx
namespace amx_emulated {
extern const ProductKernels product_kernels;
extern const Int8Kernels int8_kernels;
extern const PeakLoops peak_loops;
}  // namespace amx_emulated

namespace {

using kernels::cpu::read_span;
using kernels::cpu::write_span;

bool runs_avx512_bf16() { return kernels::cpu::best_instruction_set() >= kernels::cpu::InstructionSet::kAvx512Bf16; }

/// The kernels with AMX's instructions, and the same source with the instructions emulated (amx_emulation.h).
struct AmxKernels {
  std::string name;
  bool are_emulated;
  const ProductKernels& products;
  const Int8Kernels& int8;
  const PeakLoops& peak;

  bool can_run() const { return runs_avx512_bf16() && (are_emulated || kernels::cpu::has_amx()); }
};

const AmxKernels kEmulated{"emulated", true, amx_emulated::product_kernels, amx_emulated::int8_kernels,
                           amx_emulated::peak_loops};
const AmxKernels kInstructions{"instructions", false, avx512_amx::product_kernels, avx512_amx::int8_kernels,
                               avx512_amx::peak_loops};

struct Shape {
  int64_t rows, depth, columns;
};

class AmxProductsTest : public testing::TestWithParam<const AmxKernels*> {
 protected:
  void SetUp() override {
    if (!GetParam()->can_run()) {
      GTEST_SKIP() << (runs_avx512_bf16() ? "this processor has no AMX, or Linux does not allow it"
                                          : "this processor has no AVX512-BF16");
    }
    at::manual_seed(0);
  }

  int64_t draw(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random_); }

  /// All small extents, and depths and rows about the ends of blocks.
  std::vector<Shape> shapes() {
    std::vector<Shape> all;
    for (int64_t i = 1; i <= 100; ++i) {
      all.push_back({draw(1, 40), i, draw(1, 100)});
      all.push_back({draw(1, 40), draw(1, 100), i});
      all.push_back({std::min(i, kLargestRowBlock), draw(1, 100), draw(1, 100)});
    }
    for (const int64_t depth : {191, 192, 193, 383, 384, 385, 767, 768, 769, 770, 1600}) {
      all.push_back({draw(1, 40), depth, draw(1, 100)});
    }
    return all;
  }

  /// In the middle of NaNs, which a product with them would show. Either way round, and not aligned.
  at::Tensor matrix(int64_t rows, int64_t columns, at::ScalarType dtype) {
    const bool is_transposed = draw(0, 1) == 0;
    const int64_t lines = is_transposed ? columns : rows, length = is_transposed ? rows : columns;
    const auto part = at::full({lines + 2, length + 40}, NAN, dtype).narrow(0, 1, lines).narrow(1, draw(1, 39), length);
    part.normal_();
    return is_transposed ? part.t() : part;
  }

 private:
  std::mt19937 random_{7};
};

MatrixView view(const at::Tensor& matrix) { return {read_span(matrix), matrix.stride(0), matrix.stride(1)}; }

/// In two tasks: the first `first_columns`, and the others. Memory that nothing has been written to holds NaN.
void compute(const ProductKernels& kernels, const ProductSum& sum, int64_t first_columns) {
  const int64_t rows = sum.output.size(0), columns = sum.output.size(1), width = kernels.panel_columns;
  std::vector<at::Tensor> panels;
  std::vector<ProductTerm> terms;
  for (const auto& [left, right] : sum.terms) {
    const int64_t depth = left.size(1), panel_rows = kernels.panel_rows(read_span(right).element, depth);
    panels.push_back(at::full({(columns + width - 1) / width * width * panel_rows}, NAN));
    kernels.pack_panels(view(right), 0, columns, depth, panels.back().mutable_data_ptr<float>());
    terms.push_back({view(left), panels.back().const_data_ptr<float>(), depth});
  }
  for (const int64_t first : {int64_t{0}, first_columns}) {
    const int64_t count = first == 0 ? std::min(first_columns, columns) : columns - first;
    if (count > 0) {
      const auto scratch = at::full({kernels.scratch(columns)}, NAN);
      kernels.rows({terms.data(), std::ssize(terms), first, count, columns, write_span(sum.output), sum.adds}, 0, rows,
                   scratch.mutable_data_ptr<float>());
    }
  }
}

TEST_P(AmxProductsTest, AreThoseOfFloat64RoundedOnce) {
  for (const auto [rows, depth, columns] : shapes()) {
    for (const auto dtype : {at::kBFloat16, at::kFloat}) {  // float32 takes AVX-512
      const auto result = draw(0, 1) == 0 ? at::kFloat : dtype;
      ProductSum sum{at::randn({rows, columns}).to(result), {}, draw(0, 1) == 0};
      for (int64_t terms = draw(1, 2); terms > 0; --terms) {
        sum.terms.emplace_back(matrix(rows, depth, dtype), matrix(depth, columns, dtype));
      }
      SCOPED_TRACE(testing::Message() << rows << " x " << depth << " x " << columns << ", " << dtype << " to "
                                      << result);
      const auto right = expected(sum);  // depth + 1 roundings, of which AMX does fewer
      compute(GetParam()->products, sum, draw(1, 2) * GetParam()->products.panel_columns);
      expect_expected(sum.output, right);
    }
  }
}

at::Tensor int8_product(const Int8Kernels& kernels, const at::Tensor& x, const at::Tensor& weight, at::ScalarType to) {
  const int64_t rows = x.size(0), depth = x.size(1), columns = weight.size(0), width = kernels.panel_columns,
                padded = (columns + width - 1) / width * width, bytes = kernels.row_bytes(depth);
  const auto values = at::full({rows, bytes}, 77, at::kChar), panels = at::full({padded, bytes}, 77, at::kChar),
             scales = at::zeros({rows}), weight_scales = at::zeros({padded});
  const auto least = at::zeros({rows}, at::kInt), sums = at::zeros({padded}, at::kInt);
  const Int8Rows left{static_cast<char*>(values.mutable_data_ptr()), scales.mutable_data_ptr<float>(),
                      least.mutable_data_ptr<int32_t>(), depth};
  kernels.quantize_rows(read_span(x), x.stride(0), left, 0, rows);
  auto* packed = static_cast<int32_t*>(panels.mutable_data_ptr());
  kernels.pack_panels(weight.const_data_ptr<int8_t>(), weight.stride(0), 0, columns, depth, packed,
                      sums.mutable_data_ptr<int32_t>());
  weight_scales.narrow(0, 0, columns).copy_(int8_scales(weight));
  const auto output = at::full({rows, columns}, NAN, to);
  kernels.rows({left, packed, weight_scales.const_data_ptr<float>(), sums.const_data_ptr<int32_t>(), 0, columns,
                columns, write_span(output)},
               0, rows);
  return output;
}

TEST_P(AmxProductsTest, OfInt8AreTheirSpecificationToTheBit) {
  for (const auto [rows, depth, columns] : shapes()) {
    const auto x = at::randn({rows, depth}) + static_cast<double>(draw(-2, 2));
    const auto weight = int8_weight(at::randn({columns, depth}) * 0.05);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      EXPECT_TRUE(at::equal(int8_product(GetParam()->int8, x, weight, dtype),
                            encoder::reference::int8_product(x, weight, dtype)))
          << rows << " x " << depth << " x " << columns << ", " << dtype;
    }
  }
}

TEST_P(AmxProductsTest, PeakLoopsDoAsManyOperationsAsTheySay) {
  for (const PeakLoop& loop : {GetParam()->peak.bfloat16, GetParam()->peak.int8}) {
    const double multiplications = loop.run == nullptr ? 0 : loop.run(3);
    EXPECT_EQ(2 * multiplications, 3 * loop.operations_of_a_round);
  }
}

INSTANTIATE_TEST_SUITE_P(Amx, AmxProductsTest, testing::Values(&kEmulated, &kInstructions), [](const auto& kernels) {
  return kernels.param->name;
});

TEST(AmxEmulationTest, GivesTheBitsOfTheInstructions) {
  if (!kInstructions.can_run()) {
    GTEST_SKIP() << "this processor has no AMX, or Linux does not allow it";
  }
  for (const int64_t depth : {1, 2, 31, 384, 1000}) {
    const auto left = at::randn({33, depth}).to(at::kBFloat16), right = at::randn({depth, 50}).to(at::kBFloat16);
    const ProductSum emulated{at::empty({33, 50}), {{left, right}}, false},
        real{at::empty({33, 50}), {{left, right}}, false};
    compute(kEmulated.products, emulated, 48);
    compute(kInstructions.products, real, 48);
    EXPECT_TRUE(at::equal(emulated.output, real.output)) << depth;
  }
}

}  // namespace
}  // namespace mezzo::encoder::cpu
