#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "encoder/cpu/block_ops.h"

namespace mezzo::encoder::cpu {
namespace {

class FusedActivationTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  /// Every number of a half type between -20 and 20, or many of float32, `columns` a row.
  static at::Tensor numbers(int64_t columns) {
    auto x = at::linspace(-20, 20, 400003, at::kDouble).to(at::kFloat);
    if (GetParam() != at::kFloat) {
      const auto all = at::arange(0, 1 << 16, at::kInt).to(at::kShort).view(GetParam());
      x = all.index({all.to(at::kFloat).abs() <= 20});
    }
    return x.narrow(0, 0, x.size(0) / columns * columns).reshape({-1, columns}).contiguous();
  }

  /// @param error  of the approximation, before results are rounded
  static void expect_close(const at::Tensor& mine, const at::Tensor& expected, const at::Tensor& error) {
    ASSERT_EQ(mine.scalar_type(), GetParam());
    const double roundoff = GetParam() == at::kFloat ? 0x1p-24 : GetParam() == at::kHalf ? 0x1p-11 : 0x1p-8;
    const double least = GetParam() == at::kHalf ? 0x1p-25 : 0x1p-126;  // subnormal bfloat16 may become zeros
    const auto beyond = (mine.to(at::kDouble) - expected).abs() - (expected.abs() + error) * roundoff - least - error;
    EXPECT_LE(beyond.max().item<double>(), 0) << "at number " << beyond.argmax().item<int64_t>();
  }
};

TEST_P(FusedActivationTest, IsThatOfFloat64ForEveryNumber) {
  // Errors of Φ(x), which is multiplied by x, and of the derivative: a few roundings of terms below
  // 2. The tanh form has their difference, multiplied by up to 8. For half types, the errors of the
  // cubics.
  const bool is_float = GetParam() == at::kFloat;
  const double value_error = is_float ? 0x1p-22 : 3e-7, slope_error = is_float ? 0x1p-21 : 2e-6,
               tanh_slope_error = 0x1p-18;
  for (const int64_t columns : {1, 37, 64}) {
    const auto x = numbers(columns), no_bias = at::zeros({columns}), exact = x.to(at::kDouble);
    for (const bool is_tanh : {false, true}) {
      SCOPED_TRACE(testing::Message() << columns << " columns" << (is_tanh ? ", tanh" : ""));
      const auto activation = is_tanh ? Activation::kGeluTanh : Activation::kGelu;
      const char* approximate = is_tanh ? "tanh" : "none";
      const auto value = bias_activation(x, no_bias, activation);
      expect_close(value, at::gelu(exact, approximate), exact.abs() * value_error);
      const auto gradients = bias_activation_backward(at::ones_like(x), x, no_bias, activation);
      EXPECT_TRUE(at::equal(gradients.output, value));
      expect_close(gradients.product, at::gelu_backward(at::ones_like(exact), exact, approximate),
                   at::full_like(exact, is_tanh ? tanh_slope_error : slope_error));
    }
    const auto relu = bias_activation_backward(at::ones_like(x), x, no_bias, Activation::kRelu);
    expect_close(relu.output, at::relu(exact), at::zeros_like(exact));
    EXPECT_TRUE(at::equal(relu.product, x.gt(0).to(x.scalar_type())));
  }
}

TEST_P(FusedActivationTest, KeepsNan) {
  const auto x = at::full({2, 21}, std::numeric_limits<double>::quiet_NaN(), GetParam()), no_bias = at::zeros({21});
  for (const auto activation : {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
    EXPECT_TRUE(bias_activation(x, no_bias, activation).isnan().all().item<bool>());
  }
  EXPECT_TRUE(
      bias_activation_backward(at::ones_like(x), x, no_bias, Activation::kGelu).product.isnan().all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(All,
                         FusedActivationTest,
                         testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& test) { return std::string(c10::toString(test.param)); });

}  // namespace
}  // namespace mezzo::encoder::cpu
