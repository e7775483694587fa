#include "encoder/fused/attend.h"

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/graph_task.h>

#include "encoder/fused/block.h"

namespace mezzo::encoder::fused {
namespace {

at::Tensor leaf_of(const at::Tensor& product, const at::Tensor& bias, bool is_differentiable) {
  const at::NoGradGuard no_grad;
  const auto rows = bias.defined() ? product + bias.to(product.scalar_type()) : product.detach();
  return is_differentiable ? rows.requires_grad_() : rows;
}

}  // namespace

bool keeps_graph() { return torch::autograd::get_current_graph_task_keep_graph(); }

bool is_left(const PackedAttention& attention) {
  const BlockOps& ops = ops_of(attention.query);
  return ops.leaves_attention != nullptr && ops.leaves_attention(attention);
}

at::Tensor attend(const PackedAttention& attention, AttentionState* state) {
  if (!is_left(attention)) {
    return ops_of(attention.query).packed_attention(attention, state != nullptr ? &state->log_sum_exp : nullptr);
  }
  const bool is_differentiable = state != nullptr;
  const auto query = leaf_of(attention.query, attention.biases.query, is_differentiable),
             key = leaf_of(attention.key, attention.biases.key, is_differentiable),
             value = leaf_of(attention.value, attention.biases.value, is_differentiable);
  const at::AutoGradMode records(is_differentiable);
  const auto context = encoder::packed_attention(query, key, value, attention.num_heads, attention.layout,
                                                 attention.dropout, attention.positions, attention.relative);
  if (is_differentiable) {
    *state = {{}, query, key, value, context};
  }
  return context.detach();
}

AttentionGradients attend_backward(const PackedAttention& attention,
                                   const at::Tensor& output,
                                   const AttentionState& state,
                                   const at::Tensor& grad) {
  if (!state.context.defined()) {
    return ops_of(grad).packed_attention_backward(attention, output, state.log_sum_exp, grad);
  }
  const auto grads =
      torch::autograd::grad({state.context}, {state.query, state.key, state.value}, {grad}, keeps_graph());
  AttentionGradients result;
  result.all = at::cat(grads, 1);
  const int64_t hidden = grads[0].size(1);
  at::Tensor* const parts[] = {&result.query, &result.key, &result.value};
  for (int64_t i = 0; i < 3; ++i) {
    *parts[i] = result.all.narrow(1, i * hidden, hidden);
  }
  if (attention.biases.query.defined()) {
    const auto sums = result.all.sum(0, /*keepdim=*/false, at::kFloat).view({3, hidden});
    result.biases = {sums[0], sums[1], sums[2]};
  }
  return result;
}

}  // namespace mezzo::encoder::fused
