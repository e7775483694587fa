#include "encoder/pre_norm_blocks.h"

#include <ATen/ATen.h>

#include "encoder/block_arguments.h"
#include "encoder/reference/parts.h"
#include "mezzo/amp/module_scope.h"

namespace mezzo::encoder {

at::Tensor reference::pre_norm_attention_block(const at::Tensor& x,
                                               const PreNormAttentionParams& params,
                                               const SequenceLayoutPtr& layout) {
  const auto normed = [&] {
    const ModuleScope scope("attn_norm");
    return params.norm.weight.defined() ? layer_norm(x, params.norm) : x;
  }();
  const ModuleScope scope("attn");
  const auto parts = linear(normed, params.query_key_value).chunk(3, 1);
  const auto context = attention(parts[0], parts[1], parts[2], layout, params.attention);
  const auto rows = params.attention.only_first_queries ? layout->first_rows() : at::Tensor();
  return (rows.defined() ? x.index_select(0, rows) : x) +
         reference::dropout(linear(context, params.output, rows), params.output_dropout, rows);
}

at::Tensor reference::pre_norm_feed_forward_block(const at::Tensor& x,
                                                  const PreNormFeedForwardParams& params,
                                                  const at::Tensor& row_numbers) {
  const auto normed = [&] {
    const ModuleScope scope("mlp_norm");
    return layer_norm(x, params.norm);
  }();
  const ModuleScope scope("mlp");
  const auto halves = linear(normed, params.intermediate, row_numbers).chunk(2, 1);
  const auto inner = activate(halves[0], params.activation) * halves[1];
  return x + linear(reference::dropout(inner, params.dropout, row_numbers), params.output, row_numbers);
}

}  // namespace mezzo::encoder
