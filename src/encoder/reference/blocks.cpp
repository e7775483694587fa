#include "encoder/blocks.h"

#include <ATen/ATen.h>

#include "encoder/reference/parts.h"
#include "mezzo/amp/module_scope.h"

namespace mezzo::encoder::reference {

at::Tensor embedding_layer_norm(const at::Tensor& word,
                                const at::Tensor& position,
                                const at::Tensor& token_type,
                                const at::Tensor& ids,
                                const at::Tensor& positions,
                                const at::Tensor& token_types,
                                const LayerNormParams& norm,
                                const DropoutSite& site) {
  const ModuleScope scope("embeddings");
  const auto type = token_types.defined() ? at::embedding(token_type, token_types) : token_type.select(0, 0);
  const auto sum = at::embedding(word, ids) + type + at::embedding(position, positions);
  return encoder::dropout(layer_norm(sum, norm), site);
}

at::Tensor attention_block(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout) {
  const ModuleScope scope("attention");
  const auto context = [&] {
    const ModuleScope self("self");
    return encoder::packed_attention(linear(x, params.query), linear(x, params.key), linear(x, params.value),
                                     params.num_heads, layout, params.weights_dropout, /*positions=*/{},
                                     params.relative);
  }();
  const ModuleScope output("output");
  return encoder::residual_layer_norm(linear(context, params.output), x, params.norm, params.output_dropout);
}

at::Tensor first_token_attention_block(const at::Tensor& x,
                                       const AttentionParams& params,
                                       const SequenceLayoutPtr& layout) {
  return reference::attention_block(x, params, layout).index_select(0, layout->first_rows());
}

at::Tensor feed_forward_block(const at::Tensor& x, const FeedForwardParams& params, const at::Tensor& row_numbers) {
  const auto inner = [&] {
    const ModuleScope intermediate("intermediate");
    return activate(linear(x, params.intermediate), params.activation);
  }();
  const ModuleScope output("output");
  return encoder::residual_layer_norm(linear(inner, params.output), x, params.norm, params.dropout, row_numbers);
}

at::Tensor residual_layer_norm(const at::Tensor& x,
                               const at::Tensor& residual,
                               const LayerNormParams& norm,
                               const DropoutSite& site,
                               const at::Tensor& row_numbers) {
  return layer_norm(dropout(x, site, row_numbers) + residual, norm);
}

}  // namespace mezzo::encoder::reference
