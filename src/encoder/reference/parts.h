#pragma once

#include <ATen/ATen.h>

#include "encoder/blocks.h"
#include "kernels/dropout.h"

/// What the specifications of blocks are composed of.
namespace mezzo::encoder::reference {

inline at::Tensor layer_norm(const at::Tensor& x, const LayerNormParams& norm) {
  return at::layer_norm(x, {x.size(1)}, norm.weight, norm.bias, norm.eps);
}

inline at::Tensor linear(const at::Tensor& x, const LinearParams& params) {
  const auto y = at::linear(x, params.weight, params.bias);
  if (!params.lora) return y;
  const auto& [a, b, scale, site] = *params.lora;
  return y + at::linear(at::linear(kernels::dropout(x, site), a), b) * scale;
}

inline at::Tensor activate(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kGelu: return at::gelu(x);
    case Activation::kGeluTanh: return at::gelu(x, "tanh");
    case Activation::kRelu: return at::relu(x);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown activation");
}

/// Row t as row `row_numbers[t]` of a tensor would be, where they are given.
inline at::Tensor dropout(const at::Tensor& x, const DropoutSite& site, const at::Tensor& row_numbers) {
  return row_numbers.defined() ? kernels::reference::dropout_of_rows(x, row_numbers, site) : kernels::dropout(x, site);
}

}  // namespace mezzo::encoder::reference
