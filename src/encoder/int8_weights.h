#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

/// Weights of linear layers in int8, for prediction (W8A8, dynamic). Weights are made once, with a scale a row. The
/// other factor also has a scale a row, from the row's least number to its largest, made for each product.
namespace mezzo::encoder {

/// More columns than a weight in int8 has, so that no sum is larger than an int32 holds.
constexpr int64_t kTooDeepForInt8 = 1 << 16;

/// Bytes behind a row's integers: its scale.
constexpr int64_t kInt8ScaleBytes = 4;

/// A weight [out, in] as kChar [out, in + kInt8ScaleBytes]: a row's integers, to nearest even, and their float32 scale.
/// The scale is the largest magnitude of the row over 127. On CPUs the order that products read is kept behind it;
/// changes in place do not reach that order.
/// @throws c10::ValueError  for one with inf, NaN or kTooDeepForInt8 columns
at::Tensor int8_weight(const at::Tensor& weight);

/// The scales of such a weight's rows: [out] float32.
at::Tensor int8_scales(const at::Tensor& weight);

/// Whether it is one, or one transposed.
inline bool is_int8_weight(const at::Tensor& weight) { return weight.scalar_type() == at::kChar; }

/// Whether Products there take them: on CPUs of which kernels know the instructions, AVX2 or more.
bool has_int8_products(const c10::Device& device);

namespace reference {
/// The specification of x times such a weight, transposed, in ATen operations: as of cpu::Int8Rows and cpu::Int8Product
/// (cpu/simd/kernels.h).
/// @param x  [T, in], float32, bfloat16 or float16
/// @return [T, out], of `dtype`
at::Tensor int8_product(const at::Tensor& x, const at::Tensor& weight, at::ScalarType dtype);
}  // namespace reference

}  // namespace mezzo::encoder
