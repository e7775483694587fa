#pragma once

#include <vector>

#include "encoder/fused/block.h"

/// What the nodes of attention blocks share.
namespace mezzo::encoder::fused {

struct AttentionSettings {
  int64_t num_heads;
  double eps;
  DropoutSite weights_dropout, output_dropout;
  SequenceLayoutPtr layout;
  at::Tensor first_rows;  ///< [B] int64; undefined where all rows are computed
  bool is_differentiable;
  at::ScalarType x_dtype, weight_dtype;
};

/// Inputs of a node, where gradients go; behind them come settings and the weights to compute with.
enum AttentionInput {
  kX,
  kQueryWeight,
  kQueryBias,
  kKeyWeight,
  kKeyBias,
  kValueWeight,
  kValueBias,
  kOutputWeight,
  kOutputBias,
  kNormWeight,
  kNormBias,
  kInputs
};
constexpr size_t kAllInputs = kInputs + 5;

template <class Node>
at::Tensor apply_attention(const at::Tensor& x,
                           const AttentionParams& params,
                           const SequenceLayoutPtr& layout,
                           const at::Tensor& first_rows) {
  const auto dtype = compute_dtype(x);
  const Weight query(params.query, dtype), key(params.key, dtype), value(params.value, dtype),
      output(params.output, dtype);
  return Node::apply(
      x, query.leaf, params.query.bias, key.leaf, params.key.bias, value.leaf, params.value.bias, output.leaf,
      params.output.bias, params.norm.weight, params.norm.bias,
      AttentionSettings{params.num_heads, params.norm.eps, params.weights_dropout, params.output_dropout, layout,
                        first_rows, at::GradMode::is_enabled(), x.scalar_type(), query.leaf.scalar_type()},
      query.value, key.value, value.value, output.value);
}

}  // namespace mezzo::encoder::fused
