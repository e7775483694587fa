#include <ATen/ops/chunk.h>

#include "encoder/fused/block.h"
#include "encoder/fused/nodes.h"
#include "encoder/fused_blocks.h"

namespace mezzo::encoder::fused {
namespace {

const at::Tensor kNone;
const LayerNormParams kNoNorm{kNone, kNone, 0};

at::Tensor first_rows_of(const AttentionDescription& attention, const SequenceLayoutPtr& layout) {
  return attention.only_first_queries ? layout->first_rows() : at::Tensor();
}

}  // namespace

at::Tensor attention(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout) {
  const auto first_rows = first_rows_of(params.attention, layout);
  const Ending ending{params.norm, params.output_dropout, first_rows};
  if (first_rows.defined() && ops_of(x).first_token_attention != nullptr && params.attention.is_plain()) {
    const auto [context, residual] = first_token_attention(x, params, layout);
    return finish(context[0], {}, params.output, residual, ending);
  }
  const auto rows = project(x, kNoNorm, {params.query, params.key, params.value}, 3, first_rows,
                            /*adds_to_residual=*/true);
  const auto context =
      packed_attention(rows.parts[0], rows.parts[1], rows.parts[2],
                       {params.query.bias, params.key.bias, params.value.bias}, layout, params.attention);
  return finish(context, {}, params.output, rows.residual, ending);
}

at::Tensor pre_norm_attention(const at::Tensor& x,
                              const PreNormAttentionParams& params,
                              const SequenceLayoutPtr& layout) {
  const auto first_rows = first_rows_of(params.attention, layout);
  const auto rows = project(x, params.norm, {params.query_key_value}, 3, first_rows, /*adds_to_residual=*/false);
  AttentionBiases biases;
  if (params.query_key_value.bias.defined()) {
    const auto parts = params.query_key_value.bias.chunk(3);
    biases = {parts[0], parts[1], parts[2]};
  }
  const auto context = packed_attention(rows.parts[0], rows.parts[1], rows.parts[2], biases, layout, params.attention);
  return finish(context, {}, params.output, rows.residual, {kNoNorm, params.output_dropout, first_rows});
}

at::Tensor feed_forward(const at::Tensor& x, const FeedForwardParams& params, const at::Tensor& row_numbers) {
  const auto rows = project(x, kNoNorm, {params.intermediate}, 1, {}, /*adds_to_residual=*/true);
  return finish(rows.parts[0], InnerActivation{params.activation, /*is_gated=*/false, params.intermediate.bias},
                params.output, rows.residual, {params.norm, params.dropout, row_numbers});
}

at::Tensor pre_norm_feed_forward(const at::Tensor& x,
                                 const PreNormFeedForwardParams& params,
                                 const at::Tensor& row_numbers) {
  const auto rows = project(x, params.norm, {params.intermediate}, 1, {}, /*adds_to_residual=*/false);
  const InnerActivation gated{params.activation, /*is_gated=*/true, params.intermediate.bias, params.dropout};
  return finish(rows.parts[0], gated, params.output, rows.residual, {kNoNorm, /*dropout=*/{}, row_numbers});
}

}  // namespace mezzo::encoder::fused
