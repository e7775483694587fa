#include "encoder/int8_weights.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "encoder/cpu/int8_products.h"
#include "encoder/cpu/simd/kernels.h"

namespace mezzo::encoder {
namespace {

constexpr double kLargest = 127;  // of weights, by magnitude

/// The row's factor for a width: `steps` / width; 0 if the width is 0 or not finite.
at::Tensor factors(const at::Tensor& width, double steps) {
  const auto has_values = at::isfinite(width).logical_and(width >= cpu::kInt8Smallest);
  return at::where(has_values, steps / width, 0);
}

/// The scale of the integers: width / `steps`.
at::Tensor scales_of(const at::Tensor& width, double steps) {
  const auto scales = at::where(width >= cpu::kInt8Smallest, width / steps, 0);
  return at::where(at::isfinite(width), scales, NAN);
}

}  // namespace

at::Tensor int8_weight(const at::Tensor& weight) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(weight.dim() == 2 && weight.size(1) < kTooDeepForInt8, "int8_weight: a weight of sizes ",
                    weight.sizes(), " is too large, or no matrix");
  const auto rows = weight.detach().to(at::kFloat).contiguous();
  const auto largest = rows.abs().amax(1, /*keepdim=*/true);
  TORCH_CHECK_VALUE(at::isfinite(largest).all().item<bool>(), "int8_weight: the weight holds inf or NaN");
  const auto values = (rows * factors(largest, kLargest)).round().to(at::kChar);
  const auto result = at::cat({values, scales_of(largest, kLargest).contiguous().view(at::kChar)}, 1);
  return has_int8_products(result.device()) ? cpu::with_int8_panels(result) : result;
}

at::Tensor int8_scales(const at::Tensor& weight) {
  const auto bytes = weight.narrow(1, weight.size(1) - kInt8ScaleBytes, kInt8ScaleBytes);
  return bytes.clone(at::MemoryFormat::Contiguous).view(at::kFloat).flatten();  // where floats may begin
}

bool has_int8_products(const c10::Device& device) { return device.is_cpu() && cpu::simd_kernels().int8 != nullptr; }

namespace reference {

at::Tensor int8_product(const at::Tensor& x, const at::Tensor& weight, at::ScalarType dtype) {
  constexpr double kSteps = cpu::kInt8Steps;
  const auto rows = x.to(at::kFloat);
  const auto least = rows.amin(1, /*keepdim=*/true).clamp_max(0), most = rows.amax(1, /*keepdim=*/true).clamp_min(0),
             width = most - least, factor = factors(width, kSteps);
  const auto values = at::minimum((rows * factor).round(), (least * factor).round() + kSteps);
  const auto integers = weight.narrow(1, 0, weight.size(1) - kInt8ScaleBytes).to(at::kDouble);
  const auto sums = values.to(at::kDouble).matmul(integers.t()).to(at::kFloat);
  return (sums * (int8_scales(weight) * scales_of(width, kSteps))).to(dtype);
}

}  // namespace reference
}  // namespace mezzo::encoder
