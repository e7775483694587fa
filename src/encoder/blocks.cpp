#include "encoder/blocks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/promote_types.h>
#include <c10/util/Exception.h>

#include <string>
#include <string_view>
#include <tuple>
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
                            const OptionalTensor& norm_weight,
                            const OptionalTensor& norm_bias,
                            double norm_eps,
                            const SequenceLayoutPtr& layout,
                            const AttentionHolderPtr& attention,
                            double output_dropout,
                            int64_t output_site,
                            bool norm_first,
                            const OptionalTensor& position_key,
                            const OptionalTensor& position_query) {
  constexpr const char* kOp = "attention_block";
  TORCH_CHECK_VALUE(
      weights.size() == 2 || weights.size() == 4, "mezzo::", kOp,
      ": needs the weights of query, key, value and output, or the first three joined and the output's, got ",
      weights.size());
  const LinearLayers layers(kOp, weights.size(), weights, biases, half_copies, /*may_lack_biases=*/norm_first);
  layout->check(x, attention->description.num_heads);
  const auto scale = tensor_of(norm_weight), shift = tensor_of(norm_bias);
  check_norm(kOp, x, scale, shift, norm_first);
  const int64_t hidden = x.size(1);
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t rows = weights.size() == 2 && i == 0 ? 3 * hidden : hidden;
    TORCH_CHECK_VALUE(weights[i].size(0) == rows && weights[i].size(1) == hidden, "mezzo::", kOp, ": rows ", x.sizes(),
                      " cannot have weights ", weights[i].sizes());
  }
  std::vector<LinearParams> query_key_value;
  for (size_t i = 0; i + 1 < weights.size(); ++i) {
    query_key_value.push_back(layers[i]);
  }
  const auto described = attention->with(position_key, position_query).checked(*layout, x.device(), hidden);
  const AttentionParams params{.query_key_value = query_key_value,
                               .output = layers[weights.size() - 1],
                               .norm = {scale, shift, norm_eps},
                               .attention = described,
                               .output_dropout = beside(described.dropout, output_dropout, output_site),
                               .norm_first = norm_first};
  return kCompute(x, params, layout);
}

at::Tensor choose_attention(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout) {
  return fused::can_attend(x, params.attention) ? fused::attention(dense(x), params, layout)
                                                : reference::attention_block(x, params, layout);
}

at::Tensor attention_like(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout) {
  return x.new_empty({params.attention.only_first_queries ? layout->size() : x.size(0), x.size(1)});
}

const Operator<decltype(attention_kernel<choose_attention>)> attention_op(
    "attention_block(Tensor x, Tensor[] weights, Tensor[] biases, Tensor[] half_copies, Tensor? norm_weight, "
    "Tensor? norm_bias, float norm_eps, " +
        sequence_layout_schema() + " layout, " + attention_schema() +
        " attention, float output_dropout, int output_site, bool norm_first=False, Tensor? position_key=None, "
        "Tensor? position_query=None) -> Tensor",
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
                               const OptionalTensor& norm_bias,
                               double norm_eps,
                               double dropout,
                               int64_t seed,
                               int64_t step,
                               int64_t site,
                               const OptionalTensor& row_numbers,
                               const OptionalTensor& step_offset,
                               bool norm_first,
                               bool is_gated,
                               double inner_dropout,
                               int64_t inner_site) {
  constexpr const char* kOp = "feed_forward_block";
  const LinearLayers layers(kOp, 2, weights, biases, half_copies, /*may_lack_biases=*/norm_first && is_gated);
  const auto numbers = tensor_of(row_numbers), shift = tensor_of(norm_bias);
  check_norm(kOp, x, norm_weight, shift, norm_first);
  check_one_a_row(kOp, numbers, x.size(0));
  TORCH_CHECK_VALUE(weights[0].size(1) == x.size(1) && weights[0].size(0) == (is_gated ? 2 : 1) * weights[1].size(1) &&
                        weights[1].size(0) == x.size(1),
                    "mezzo::", kOp, ": rows ", x.sizes(), " cannot have weights ", weights[0].sizes(), " and ",
                    weights[1].sizes());
  TORCH_CHECK_VALUE(is_gated || inner_dropout == 0, "mezzo::", kOp,
                    ": inner_dropout is for gated activations; set is_gated or leave it 0");
  const auto site_of_output = DropoutSite::of(dropout, seed, step, site, step_offset, x.device());
  const FeedForwardParams params{.intermediate = layers[0],
                                 .output = layers[1],
                                 .activation = parse_activation(kOp, activation),
                                 .norm = {norm_weight, shift, norm_eps},
                                 .dropout = site_of_output,
                                 .norm_first = norm_first,
                                 .is_gated = is_gated,
                                 .inner_dropout = beside(site_of_output, inner_dropout, inner_site)};
  return kCompute(x, params, numbers);
}

at::Tensor choose_feed_forward(const at::Tensor& x, const FeedForwardParams& params, const at::Tensor& row_numbers) {
  return fused::can_run(x) ? fused::feed_forward(dense(x), params, dense(row_numbers))
                           : reference::feed_forward_block(x, params, row_numbers);
}

const Operator<decltype(feed_forward_kernel<choose_feed_forward>)> feed_forward_op(
    "feed_forward_block(Tensor x, Tensor[] weights, Tensor[] biases, Tensor[] half_copies, str activation, "
    "Tensor norm_weight, Tensor? norm_bias, float norm_eps, float dropout, int seed, int step, int site, "
    "Tensor? row_numbers, Tensor? step_offset=None, bool norm_first=False, bool is_gated=False, "
    "float inner_dropout=0.0, int inner_site=0) -> Tensor",
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
  std::vector<LinearParams> all = params.query_key_value;
  all.push_back(params.output);
  if (has_lora(all)) return reference::attention_block(x, params, layout);
  const LinearLists layers(all);
  return attention_op(x, layers.weights, layers.biases, layers.half_copies, if_defined(params.norm.weight),
                      if_defined(params.norm.bias), params.norm.eps, layout, without_tables(params.attention),
                      params.output_dropout.p, params.output_dropout.key.site, params.norm_first,
                      if_defined(params.attention.relative.key), if_defined(params.attention.relative.query));
}

at::Tensor feed_forward_block(const at::Tensor& x, const FeedForwardParams& params, const at::Tensor& row_numbers) {
  const std::vector<LinearParams> all{params.intermediate, params.output};
  if (has_lora(all)) return reference::feed_forward_block(x, params, row_numbers);
  const LinearLists layers(all);
  const auto& [dropout, inner_dropout] = std::tie(params.dropout, params.inner_dropout);
  return feed_forward_op(x, layers.weights, layers.biases, layers.half_copies, to_string(params.activation),
                         params.norm.weight, if_defined(params.norm.bias), params.norm.eps, dropout.p, seed_of(dropout),
                         dropout.key.step, dropout.key.site, if_defined(row_numbers), if_defined(dropout.step_offset),
                         params.norm_first, params.is_gated, inner_dropout.p, inner_dropout.key.site);
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
