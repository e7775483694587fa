#pragma once

#include <ATen/core/Tensor.h>

/// The products of Products on an accelerator, each queued at once.
namespace mezzo::encoder {

/// The product a b, of `dtype`.
at::Tensor device_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype);
/// output = a b
void assign_device_product(const at::Tensor& output, const at::Tensor& a, const at::Tensor& b);
/// total += a b
void add_device_product(const at::Tensor& total, const at::Tensor& a, const at::Tensor& b);

}  // namespace mezzo::encoder
