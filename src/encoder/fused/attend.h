#pragma once

#include "encoder/block_ops.h"

namespace mezzo::encoder::fused {

/// What backward needs of attention beside its inputs.
struct AttentionState {
  at::Tensor log_sum_exp;                 ///< of the device's kernels; or, where these leave attention to the operator,
  at::Tensor query, key, value, context;  ///< a graph of its own: leaves with their biases, and what it gives
};

/// Attention between the products of a block: by the device's kernels, or by the operator mezzo::packed_attention where
/// BlockOps::leaves_attention says so.
/// @param state  nullptr if backward will not be called
at::Tensor attend(const PackedAttention& attention, AttentionState* state);

/// Whether attend() leaves it to the operator, by sizes, dtype, device and layout alone.
bool is_left(const PackedAttention& attention);

/// Undefined where the state has what `rows` became.
inline at::Tensor unless_kept(const at::Tensor& rows, const AttentionState& state) {
  return state.context.defined() ? at::Tensor() : rows;
}

/// Whether the backward pass under way may come again, and wants what it read.
bool keeps_graph();

/// @param attention  as of attend(); query, key and value are not looked at where the state has them.
/// @param output  what that gave
AttentionGradients attend_backward(const PackedAttention& attention,
                                   const at::Tensor& output,
                                   const AttentionState& state,
                                   const at::Tensor& grad);

}  // namespace mezzo::encoder::fused
