#pragma once

#include <ATen/ATen.h>

#include "encoder/blocks.h"
#include "encoder/dropout.h"
#include "encoder/fused_blocks.h"
#include "encoder/packed_attention.h"

/// The parts of the blocks' specifications.
namespace mezzo::encoder::reference {

inline at::Tensor layer_norm(const at::Tensor& x, const LayerNormParams& norm) {
  return at::layer_norm(x, {x.size(1)}, norm.weight, norm.bias, norm.eps);
}

/// Row t of x as row `row_numbers[t]` of a tensor would be dropped, if they are given.
inline at::Tensor dropout(const at::Tensor& x, const DropoutSite& site, const at::Tensor& row_numbers) {
  return row_numbers.defined() ? dropout_of_rows(x, row_numbers, site) : encoder::dropout(x, site);
}

inline at::Tensor linear(const at::Tensor& x, const LinearParams& params, const at::Tensor& row_numbers = {}) {
  const bool is_trained = params.weight.requires_grad() || (params.bias.defined() && params.bias.requires_grad());
  const auto y = params.lora && !is_trained && fused::can_run(x) ? fused::frozen_linear(x, params)
                                                                 : at::linear(x, params.weight, params.bias);
  if (!params.lora) return y;
  const auto& [a, b, scale, site] = *params.lora;
  return at::addmm(y, at::linear(dropout(x, site, row_numbers), a), b.t(), 1, scale);
}

/// Attention of keys and values of all rows, and of queries of all rows or, of first tokens only, of the first ones.
inline at::Tensor attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            const SequenceLayoutPtr& layout,
                            const AttentionDescription& description) {
  return encoder::packed_attention(description.only_first_queries ? query.index_select(0, layout->first_rows()) : query,
                                   key, value, layout, description);
}

inline at::Tensor activate(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kGelu: return at::gelu(x);
    case Activation::kGeluTanh: return at::gelu(x, "tanh");
    case Activation::kRelu: return at::relu(x);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown activation");
}

}  // namespace mezzo::encoder::reference
