#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "encoder/cpu/product_sum.h"

namespace mezzo::encoder::cpu {

inline double unit_roundoff(at::ScalarType dtype) {
  return dtype == at::kFloat ? 0x1p-24 : dtype == at::kBFloat16 ? 0x1p-8 : 0x1p-11;
}

/// The sum in float64, and the error that the kernels may have. Each product and each addition
/// rounds to float32 (all values are of order 1). The result is rounded once more.
struct Expected {
  at::Tensor sum, tolerance;
};

inline Expected expected(const ProductSum& of) {
  auto sum = of.adds ? of.output.to(at::kDouble) : at::zeros(of.output.sizes(), at::kDouble);
  auto magnitudes = sum.abs();
  for (const auto& [a, b] : of.terms) {
    sum += at::mm(a.to(at::kDouble), b.to(at::kDouble));
    magnitudes += at::mm(a.to(at::kDouble).abs(), b.to(at::kDouble).abs());
  }
  const double depth = of.operations() / static_cast<double>(of.output.numel()) + 1;
  return {sum, magnitudes * (depth * 0x1p-24) + sum.abs() * unit_roundoff(of.output.scalar_type()) + 0x1p-25};
}

inline void expect_expected(const at::Tensor& mine, const Expected& right) {
  const auto excess = (mine.to(at::kDouble) - right.sum).abs() - right.tolerance;
  EXPECT_LE(excess.max().item<double>(), 0);
}

}  // namespace mezzo::encoder::cpu
