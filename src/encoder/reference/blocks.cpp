#include "encoder/blocks.h"

#include <ATen/ATen.h>

#include "encoder/block_arguments.h"
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
    return attention(linear(x, params.query), linear(x, params.key), linear(x, params.value), layout, params.attention);
  }();
  const ModuleScope output("output");
  const auto rows = params.attention.only_first_queries ? layout->first_rows() : at::Tensor();
  return encoder::residual_layer_norm(linear(context, params.output, rows),
                                      rows.defined() ? x.index_select(0, rows) : x, params.norm, params.output_dropout,
                                      rows);
}

at::Tensor feed_forward_block(const at::Tensor& x, const FeedForwardParams& params, const at::Tensor& row_numbers) {
  const auto inner = [&] {
    const ModuleScope intermediate("intermediate");
    return activate(linear(x, params.intermediate, row_numbers), params.activation);
  }();
  const ModuleScope output("output");
  return encoder::residual_layer_norm(linear(inner, params.output, row_numbers), x, params.norm, params.dropout,
                                      row_numbers);
}

at::Tensor residual_layer_norm(const at::Tensor& x,
                               const at::Tensor& residual,
                               const LayerNormParams& norm,
                               const DropoutSite& site,
                               const at::Tensor& row_numbers) {
  return layer_norm(dropout(x, site, row_numbers) + residual, norm);
}

}  // namespace mezzo::encoder::reference
