#pragma once

#include <vector>

#include "encoder/fused/attend.h"
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
  at::ScalarType x_dtype, weight_dtype, dtype;  ///< the last one of products
  at::Tensor relative_rows;                     ///< RelativePositions::rows
  AttentionState state = {};
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

/// What backward of the part behind attention gives to attention, [B or T, H].
struct GradBehindAttention {
  at::Tensor context;   ///< of the rows that the output's weight was multiplied by
  at::Tensor residual;  ///< of x, where it is added
};

/// Backward of layer_norm(dropout(context times the output's weight + bias) + x), whose parameters
/// get their gradients in `result`.
/// @param saved  parameters at their places
inline GradBehindAttention backward_behind_attention(const AutogradContext* ctx,
                                                     const at::Tensor& grad,
                                                     const AttentionSettings& settings,
                                                     const variable_list& saved,
                                                     const at::Tensor& context,
                                                     const Normalised& normalised,
                                                     variable_list& result) {
  const auto outer = ops_of(context).residual_layer_norm_backward(grad.contiguous(), normalised, saved[kNormWeight],
                                                                  settings.output_dropout, settings.first_rows,
                                                                  context.scalar_type(), settings.x_dtype);
  Products products;
  result[kOutputWeight] = grad_weight(ctx, kOutputWeight, products, outer.product, context, settings.weight_dtype);
  const auto grad_context = products.add(outer.product, saved[kOutputWeight]);
  products.compute();
  result[kOutputBias] = grad_vector(outer.bias, saved[kOutputBias]);
  result[kNormWeight] = grad_vector(outer.norm.weight, saved[kNormWeight]);
  result[kNormBias] = grad_vector(outer.norm.bias, saved[kNormBias]);
  return {grad_context, outer.residual};
}

/// The gradients of the biases that attention adds.
inline void set_bias_gradients(const AttentionBiases& sums, const variable_list& saved, variable_list& result) {
  result[kQueryBias] = grad_vector(sums.query, saved[kQueryBias]);
  result[kKeyBias] = grad_vector(sums.key, saved[kKeyBias]);
  result[kValueBias] = grad_vector(sums.value, saved[kValueBias]);
}

/// @param further  inputs of this node alone, behind those that all have
template <class Node, class... Further>
at::Tensor apply_attention(const at::Tensor& x,
                           const AttentionParams& params,
                           const SequenceLayoutPtr& layout,
                           const at::Tensor& first_rows,
                           const Further&... further) {
  const auto dtype = compute_dtype(x);
  constexpr bool kInt8 = Node::kTakesInt8;
  const Weight query(params.query, dtype, kInt8), key(params.key, dtype, kInt8), value(params.value, dtype, kInt8),
      output(params.output, dtype, kInt8);
  return Node::apply(x, query.leaf, params.query.bias, key.leaf, params.key.bias, value.leaf, params.value.bias,
                     output.leaf, params.output.bias, params.norm.weight, params.norm.bias, further...,
                     AttentionSettings{params.num_heads, params.norm.eps, params.weights_dropout, params.output_dropout,
                                       layout, first_rows, at::GradMode::is_enabled(), x.scalar_type(),
                                       query.leaf.scalar_type(), dtype, params.relative.rows},
                     query.value, key.value, value.value, output.value);
}

/// Attention with relative positions, of all rows or of the first ones.
/// @param first_rows  [B] int64: of the sequences; undefined for all
at::Tensor relative_attention(const at::Tensor& x,
                              const AttentionParams& params,
                              const SequenceLayoutPtr& layout,
                              const at::Tensor& first_rows);

}  // namespace mezzo::encoder::fused
