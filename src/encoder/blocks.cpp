#include "encoder/blocks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/promote_types.h>
#include <c10/util/Exception.h>

#include <string>
#include <string_view>
#include <vector>

#include "encoder/block_arguments.h"
#include "encoder/fused_blocks.h"
#include "kernels/operator.h"

namespace mezzo::encoder {
namespace {

using c10::DispatchKey;
using kernels::choosing_kernels;
using kernels::if_defined;
using kernels::kernel;
using kernels::meta_like_first;
using kernels::Operator;
using EmbeddingFunction = at::Tensor(const at::Tensor&,
                                     const at::Tensor&,
                                     const at::Tensor&,
                                     const at::Tensor&,
                                     const at::Tensor&,
                                     const at::Tensor&,
                                     const LayerNormParams&,
                                     const DropoutSite&);

template <EmbeddingFunction& kCompute>
at::Tensor embedding_kernel(const at::Tensor& word,
                            const at::Tensor& position,
                            const at::Tensor& token_type,
                            const at::Tensor& ids,
                            const at::Tensor& positions,
                            const OptionalTensor& token_types,
                            const at::Tensor& norm_weight,
                            const at::Tensor& norm_bias,
                            double norm_eps,
                            double dropout,
                            int64_t seed,
                            int64_t step,
                            int64_t site,
                            const OptionalTensor& step_offset) {
  constexpr const char* kOp = "embedding_layer_norm";
  const auto types = tensor_of(token_types);
  TORCH_CHECK_VALUE(ids.dim() == 1 && position.dim() == 2 && token_type.dim() == 2 && token_type.size(0) > 0,
                    "mezzo::", kOp, ": ids must be a vector and tables matrices with rows, got ", ids.sizes(), ", ",
                    position.sizes(), " and ", token_type.sizes());
  check_one_a_row(kOp, positions, ids.size(0));
  check_one_a_row(kOp, types, ids.size(0));
  check_norm(kOp, word, norm_weight, norm_bias);
  TORCH_CHECK_VALUE(position.size(1) == word.size(1) && token_type.size(1) == word.size(1), "mezzo::", kOp,
                    ": tables have ", word.size(1), ", ", position.size(1), " and ", token_type.size(1), " columns");
  const LayerNormParams norm{norm_weight, norm_bias, norm_eps};
  return kCompute(word, position, token_type, ids, positions, types, norm,
                  DropoutSite::of(dropout, seed, step, site, step_offset, word.device()));
}

at::Tensor choose_embeddings(const at::Tensor& word,
                             const at::Tensor& position,
                             const at::Tensor& token_type,
                             const at::Tensor& ids,
                             const at::Tensor& positions,
                             const at::Tensor& types,
                             const LayerNormParams& norm,
                             const DropoutSite& dropout) {
  return fused::can_run(word)
             ? fused::embeddings(dense(word), dense(position), dense(token_type), dense(ids), dense(positions),
                                 dense(types), norm, dropout)
             : reference::embedding_layer_norm(word, position, token_type, ids, positions, types, norm, dropout);
}

at::Tensor embedding_meta(const at::Tensor& word,
                          const at::Tensor& /*position*/,
                          const at::Tensor& /*token_type*/,
                          const at::Tensor& ids,
                          const at::Tensor& /*positions*/,
                          const OptionalTensor& /*token_types*/,
                          const at::Tensor& /*norm_weight*/,
                          const at::Tensor& /*norm_bias*/,
                          double /*norm_eps*/,
                          double /*dropout*/,
                          int64_t /*seed*/,
                          int64_t /*step*/,
                          int64_t /*site*/,
                          const OptionalTensor& /*step_offset*/) {
  return word.new_empty({ids.size(0), word.size(1)});
}

const Operator<decltype(embedding_meta)> embedding_op(
    "embedding_layer_norm(Tensor word, Tensor position, Tensor token_type, Tensor ids, Tensor positions, "
    "Tensor? token_types, Tensor norm_weight, Tensor norm_bias, float norm_eps, float dropout, int seed, int step, "
    "int site, Tensor? step_offset=None) -> Tensor",
    kernel<&embedding_meta>(DispatchKey::Meta),
    choosing_kernels<&embedding_kernel<choose_embeddings>>(),
    kernel<&embedding_kernel<reference::embedding_layer_norm>>(DispatchKey::CompositeImplicitAutograd));

using AttentionFunction = at::Tensor(const at::Tensor&, const AttentionParams&, const SequenceLayoutPtr&);

template <AttentionFunction& kCompute>
at::Tensor attention_kernel(const at::Tensor& x,
                            at::TensorList weights,
                            at::TensorList biases,
                            at::TensorList half_copies,
                            const at::Tensor& norm_weight,
                            const at::Tensor& norm_bias,
                            double norm_eps,
                            const SequenceLayoutPtr& layout,
                            const AttentionHolderPtr& attention,
                            double output_dropout,
                            int64_t output_site,
                            const OptionalTensor& position_key,
                            const OptionalTensor& position_query) {
  constexpr const char* kOp = "attention_block";
  const LinearLayers layers(kOp, 4, weights, biases, half_copies);
  layout->check(x, attention->description.num_heads);
  check_norm(kOp, x, norm_weight, norm_bias);
  for (const at::Tensor& weight : weights) {
    TORCH_CHECK_VALUE(weight.size(0) == x.size(1) && weight.size(1) == x.size(1), "mezzo::", kOp, ": rows ", x.sizes(),
                      " cannot have weights ", weight.sizes());
  }
  const auto described = attention->with(position_key, position_query).checked(*layout, x.device(), x.size(1));
  const AttentionParams params{.query = layers[0],
                               .key = layers[1],
                               .value = layers[2],
                               .output = layers[3],
                               .norm = {norm_weight, norm_bias, norm_eps},
                               .attention = described,
                               .output_dropout = beside(described.dropout, output_dropout, output_site)};
  return kCompute(x, params, layout);
}

at::Tensor choose_attention(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout) {
  return fused::can_attend(x, params.attention.num_heads) ? fused::attention(dense(x), params, layout)
                                                          : reference::attention_block(x, params, layout);
}

at::Tensor attention_like(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout) {
  return rows_of_attention(x, params.attention, layout);
}

const Operator<decltype(attention_kernel<choose_attention>)> attention_op(
    "attention_block(Tensor x, Tensor[] weights, Tensor[] biases, Tensor[] half_copies, Tensor norm_weight, "
    "Tensor norm_bias, float norm_eps, " +
        sequence_layout_schema() + " layout, " + attention_schema() +
        " attention, float output_dropout, int output_site, Tensor? position_key=None, Tensor? position_query=None) -> "
        "Tensor",
    kernel<&attention_kernel<attention_like>>(DispatchKey::Meta),
    choosing_kernels<&attention_kernel<choose_attention>>(),
    kernel<&attention_kernel<reference::attention_block>>(DispatchKey::CompositeImplicitAutograd));

using FeedForwardFunction = at::Tensor(const at::Tensor&, const FeedForwardParams&, const at::Tensor&);

template <FeedForwardFunction& kCompute>
at::Tensor feed_forward_kernel(const at::Tensor& x,
                               at::TensorList weights,
                               at::TensorList biases,
                               at::TensorList half_copies,
                               c10::string_view activation,
                               const at::Tensor& norm_weight,
                               const at::Tensor& norm_bias,
                               double norm_eps,
                               double dropout,
                               int64_t seed,
                               int64_t step,
                               int64_t site,
                               const OptionalTensor& row_numbers,
                               const OptionalTensor& step_offset) {
  constexpr const char* kOp = "feed_forward_block";
  const LinearLayers layers(kOp, 2, weights, biases, half_copies);
  const auto numbers = tensor_of(row_numbers);
  check_norm(kOp, x, norm_weight, norm_bias);
  check_one_a_row(kOp, numbers, x.size(0));
  TORCH_CHECK_VALUE(
      weights[0].size(1) == x.size(1) && weights[1].size(1) == weights[0].size(0) && weights[1].size(0) == x.size(1),
      "mezzo::", kOp, ": rows ", x.sizes(), " cannot have weights ", weights[0].sizes(), " and ", weights[1].sizes());
  const FeedForwardParams params{.intermediate = layers[0],
                                 .output = layers[1],
                                 .activation = parse_activation(kOp, activation),
                                 .norm = {norm_weight, norm_bias, norm_eps},
                                 .dropout = DropoutSite::of(dropout, seed, step, site, step_offset, x.device())};
  return kCompute(x, params, numbers);
}

at::Tensor choose_feed_forward(const at::Tensor& x, const FeedForwardParams& params, const at::Tensor& row_numbers) {
  return fused::can_run(x) ? fused::feed_forward(dense(x), params, dense(row_numbers))
                           : reference::feed_forward_block(x, params, row_numbers);
}

const Operator<decltype(feed_forward_kernel<choose_feed_forward>)> feed_forward_op(
    "feed_forward_block(Tensor x, Tensor[] weights, Tensor[] biases, Tensor[] half_copies, str activation, "
    "Tensor norm_weight, Tensor norm_bias, float norm_eps, float dropout, int seed, int step, int site, "
    "Tensor? row_numbers, Tensor? step_offset=None) -> Tensor",
    meta_like_first(),
    choosing_kernels<&feed_forward_kernel<choose_feed_forward>>(),
    kernel<&feed_forward_kernel<reference::feed_forward_block>>(DispatchKey::CompositeImplicitAutograd));

at::Tensor residual_layer_norm_kernel(const at::Tensor& x,
                                      const at::Tensor& residual,
                                      const at::Tensor& norm_weight,
                                      const at::Tensor& norm_bias,
                                      double norm_eps,
                                      double dropout,
                                      int64_t seed,
                                      int64_t step,
                                      int64_t site,
                                      const OptionalTensor& row_numbers,
                                      const OptionalTensor& step_offset) {
  check_norm("residual_layer_norm", x, norm_weight, norm_bias);
  TORCH_CHECK_VALUE(residual.sizes() == x.sizes(), "mezzo::residual_layer_norm: rows ", x.sizes(),
                    " cannot have a residual ", residual.sizes());
  check_one_a_row("residual_layer_norm", tensor_of(row_numbers), x.size(0));
  return reference::residual_layer_norm(x, residual, {norm_weight, norm_bias, norm_eps},
                                        DropoutSite::of(dropout, seed, step, site, step_offset, x.device()),
                                        tensor_of(row_numbers));
}

at::Tensor residual_layer_norm_meta(const at::Tensor& x,
                                    const at::Tensor& residual,
                                    const at::Tensor& /*norm_weight*/,
                                    const at::Tensor& /*norm_bias*/,
                                    double /*norm_eps*/,
                                    double /*dropout*/,
                                    int64_t /*seed*/,
                                    int64_t /*step*/,
                                    int64_t /*site*/,
                                    const OptionalTensor& /*row_numbers*/,
                                    const OptionalTensor& /*step_offset*/) {
  return at::empty(x.sizes(), x.options().dtype(at::promote_types(x.scalar_type(), residual.scalar_type())));
}

const Operator<decltype(residual_layer_norm_kernel)> residual_layer_norm_op(
    "residual_layer_norm(Tensor x, Tensor residual, Tensor norm_weight, Tensor norm_bias, float norm_eps, "
    "float dropout, int seed, int step, int site, Tensor? row_numbers, Tensor? step_offset=None) -> Tensor",
    kernel<&residual_layer_norm_meta>(DispatchKey::Meta),
    kernel<&residual_layer_norm_kernel>(DispatchKey::CompositeImplicitAutograd));

}  // namespace

at::Tensor embedding_layer_norm(const at::Tensor& word,
                                const at::Tensor& position,
                                const at::Tensor& token_type,
                                const at::Tensor& ids,
                                const at::Tensor& positions,
                                const at::Tensor& token_types,
                                const LayerNormParams& norm,
                                const DropoutSite& dropout) {
  return embedding_op(word, position, token_type, ids, positions, if_defined(token_types), norm.weight, norm.bias,
                      norm.eps, dropout.p, seed_of(dropout), dropout.key.step, dropout.key.site,
                      if_defined(dropout.step_offset));
}

at::Tensor attention_block(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout) {
  if (has_lora(params.query, params.key, params.value, params.output)) {
    return reference::attention_block(x, params, layout);
  }
  const LinearLists layers(params.query, params.key, params.value, params.output);
  return attention_op(x, layers.weights, layers.biases, layers.half_copies, params.norm.weight, params.norm.bias,
                      params.norm.eps, layout, without_tables(params.attention), params.output_dropout.p,
                      params.output_dropout.key.site, if_defined(params.attention.relative.key),
                      if_defined(params.attention.relative.query));
}

at::Tensor feed_forward_block(const at::Tensor& x, const FeedForwardParams& params, const at::Tensor& row_numbers) {
  if (has_lora(params.intermediate, params.output)) return reference::feed_forward_block(x, params, row_numbers);
  const LinearLists layers(params.intermediate, params.output);
  const auto& dropout = params.dropout;
  return feed_forward_op(x, layers.weights, layers.biases, layers.half_copies, to_string(params.activation),
                         params.norm.weight, params.norm.bias, params.norm.eps, dropout.p, seed_of(dropout),
                         dropout.key.step, dropout.key.site, if_defined(row_numbers), if_defined(dropout.step_offset));
}

at::Tensor residual_layer_norm(const at::Tensor& x,
                               const at::Tensor& residual,
                               const LayerNormParams& norm,
                               const DropoutSite& dropout,
                               const at::Tensor& row_numbers) {
  return residual_layer_norm_op(x, residual, norm.weight, norm.bias, norm.eps, dropout.p, seed_of(dropout),
                                dropout.key.step, dropout.key.site, if_defined(row_numbers),
                                if_defined(dropout.step_offset));
}

}  // namespace mezzo::encoder
