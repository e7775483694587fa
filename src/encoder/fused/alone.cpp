#include <tuple>
#include <utility>

#include "encoder/fused/attend.h"
#include "encoder/fused/block.h"
#include "kernels/operator.h"

/// Parts of blocks, each one node of the graph, for blocks that no node computes as a whole.
namespace mezzo::encoder::fused {
namespace {

struct FrozenLinear : torch::autograd::Function<FrozenLinear> {
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
    const NoAutocast no_autocast;
    auto output = matrix_product(x, weight.t());
    if (bias) output.add_(*bias);
    ctx->save_for_backward({weight});
    return output;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    check_once_differentiable("linear layer");
    const NoAutocast no_autocast;
    return {matrix_product(grads[0].contiguous(), ctx->get_saved_variables()[0]), at::Tensor(), at::Tensor()};
  }
};

struct AttentionAlone : torch::autograd::Function<AttentionAlone> {
  struct Settings {
    PackedAttention attention;  // without its rows
    AttentionState state = {};
  };

  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            Settings settings) {
    const NoAutocast no_autocast;
    const auto output = attend(with_rows(settings.attention, query, key, value), &settings.state);
    const auto& state = settings.state;
    ctx->save_for_backward(
        {unless_kept(query, state), unless_kept(key, state), unless_kept(value, state), output.detach()});
    keep(ctx, std::move(settings));
    return output;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    check_once_differentiable("attention");
    const NoAutocast no_autocast;
    const auto saved = ctx->get_saved_variables();
    const auto holder = kept<Settings>(ctx);
    const auto inner = attend_backward(with_rows(holder->settings.attention, saved[0], saved[1], saved[2]), saved[3],
                                       holder->settings.state, grads[0].contiguous());
    if (!keeps_graph()) holder->settings.state = {};
    return {inner.query, inner.key, inner.value, at::Tensor()};
  }

  static PackedAttention with_rows(PackedAttention attention,
                                   const at::Tensor& query,
                                   const at::Tensor& key,
                                   const at::Tensor& value) {
    std::tie(attention.query, attention.key, attention.value) = std::tie(query, key, value);
    return attention;
  }
};

}  // namespace

at::Tensor packed_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            int64_t num_heads,
                            const SequenceLayoutPtr& layout,
                            const DropoutSite& dropout,
                            const TokenPositions& positions) {
  return AttentionAlone::apply(query, key, value,
                               AttentionAlone::Settings{{{}, {}, {}, {}, num_heads, layout, dropout, positions}});
}

at::Tensor frozen_linear(const at::Tensor& x, const LinearParams& params) {
  const auto dtype = compute_dtype(x);
  const Weight weight(params, dtype, /*may_be_int8=*/false);
  return FrozenLinear::apply(x.to(dtype).contiguous(), weight.value, kernels::if_defined(params.bias));
}

}  // namespace mezzo::encoder::fused
