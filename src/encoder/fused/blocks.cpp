#include <ATen/ops/chunk.h>

#include "encoder/fused/block.h"
#include "encoder/fused/nodes.h"
#include "encoder/fused_blocks.h"

namespace mezzo::encoder::fused {
namespace {

const at::Tensor kNone;
const LayerNormParams kNoNorm{kNone, kNone, 0};

AttentionBiases biases_of(const std::vector<LinearParams>& layers) {
  if (layers.size() == 3) {
    return {layers[0].bias, layers[1].bias, layers[2].bias};
  }
  if (!layers[0].bias.defined()) {
    return {};
  }
  const auto parts = layers[0].bias.chunk(3);
  return {parts[0], parts[1], parts[2]};
}

}  // namespace

at::Tensor attention(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout) {
  const AttentionDescription& attention = params.attention;
  const auto first_rows = attention.only_first_queries ? layout->first_rows() : at::Tensor();
  const Ending ending{params.norm_first ? kNoNorm : params.norm, params.output_dropout, first_rows};
  if (first_rows.defined() && ops_of(x).first_token_attention != nullptr && attention.is_plain() &&
      !params.norm_first && params.query_key_value.size() == 3) {
    const auto [context, residual] = first_token_attention(x, params, layout);
    return finish(context[0], {}, params.output, residual, ending);
  }
  const auto rows = project(x, params.norm_first ? params.norm : kNoNorm, params.query_key_value, 3, first_rows,
                            /*adds_to_residual=*/!params.norm_first);
  const auto context = packed_attention(rows.parts[0], rows.parts[1], rows.parts[2], biases_of(params.query_key_value),
                                        layout, attention);
  return finish(context, {}, params.output, rows.residual, ending);
}

at::Tensor feed_forward(const at::Tensor& x, const FeedForwardParams& params, const at::Tensor& row_numbers) {
  const auto rows = project(x, params.norm_first ? params.norm : kNoNorm, {params.intermediate}, 1, /*first_rows=*/{},
                            /*adds_to_residual=*/!params.norm_first);
  const InnerActivation inner{params.activation, params.is_gated, params.intermediate.bias, params.inner_dropout};
  return finish(rows.parts[0], inner, params.output, rows.residual,
                {params.norm_first ? kNoNorm : params.norm, params.dropout, row_numbers});
}

}  // namespace mezzo::encoder::fused
