#include "encoder/pre_norm_blocks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/promote_types.h>
#include <c10/util/Exception.h>

#include "encoder/block_arguments.h"
#include "encoder/fused_blocks.h"
#include "kernels/operator.h"

namespace mezzo::encoder {
namespace {

using PreNormAttentionFunction = at::Tensor(const at::Tensor&, const PreNormAttentionParams&, const SequenceLayoutPtr&);

template <PreNormAttentionFunction& kCompute>
at::Tensor pre_norm_attention_kernel(const at::Tensor& x,
                                     at::TensorList weights,
                                     at::TensorList biases,
                                     at::TensorList half_copies,
                                     const OptionalTensor& norm_weight,
                                     const OptionalTensor& norm_bias,
                                     double norm_eps,
                                     const SequenceLayoutPtr& layout,
                                     const AttentionHolderPtr& attention,
                                     double output_dropout,
                                     int64_t output_site) {
  constexpr const char* kOp = "pre_norm_attention_block";
  const LinearLayers layers(kOp, 2, weights, biases, half_copies, /*may_lack_biases=*/true);
  layout->check(x, attention->description.num_heads);
  const auto scale = tensor_of(norm_weight), shift = tensor_of(norm_bias);
  if (scale.defined()) {
    check_norm(kOp, x, scale, shift);
  }
  const int64_t hidden = x.size(1);
  TORCH_CHECK_VALUE(weights[0].size(0) == 3 * hidden && weights[0].size(1) == hidden && weights[1].size(0) == hidden &&
                        weights[1].size(1) == hidden && (scale.defined() || !shift.defined()),
                    "mezzo::", kOp, ": rows ", x.sizes(), " cannot have weights ", weights[0].sizes(), " and ",
                    weights[1].sizes(), ", or a norm's bias without its weight");
  const auto described = attention->description.checked(*layout, x.device(), hidden);
  const PreNormAttentionParams params{.norm = {scale, shift, norm_eps},
                                      .query_key_value = layers[0],
                                      .output = layers[1],
                                      .attention = described,
                                      .output_dropout = beside(described.dropout, output_dropout, output_site)};
  return kCompute(x, params, layout);
}

at::Tensor choose_pre_norm_attention(const at::Tensor& x,
                                     const PreNormAttentionParams& params,
                                     const SequenceLayoutPtr& layout) {
  return fused::can_run_pre_norm(x) && fused::can_attend(x, params.attention.num_heads)
             ? fused::pre_norm_attention(dense(x), params, layout)
             : reference::pre_norm_attention_block(x, params, layout);
}

at::Tensor like_rows(const at::Tensor& x, const PreNormAttentionParams& params, const SequenceLayoutPtr& layout) {
  return rows_of_attention(x, params.attention, layout);
}

const kernels::Operator<decltype(pre_norm_attention_kernel<like_rows>)> pre_norm_attention_op(
    "pre_norm_attention_block(Tensor x, Tensor[] weights, Tensor[] biases, Tensor[] half_copies, Tensor? norm_weight, "
    "Tensor? norm_bias, float norm_eps, " +
        sequence_layout_schema() + " layout, " + attention_schema() +
        " attention, float output_dropout, int output_site) -> Tensor",
    kernels::kernel<&pre_norm_attention_kernel<like_rows>>(c10::DispatchKey::Meta),
    kernels::choosing_kernels<&pre_norm_attention_kernel<choose_pre_norm_attention>>(),
    kernels::kernel<&pre_norm_attention_kernel<reference::pre_norm_attention_block>>(
        c10::DispatchKey::CompositeImplicitAutograd));

using PreNormFeedForwardFunction = at::Tensor(const at::Tensor&, const PreNormFeedForwardParams&, const at::Tensor&);

template <PreNormFeedForwardFunction& kCompute>
at::Tensor pre_norm_feed_forward_kernel(const at::Tensor& x,
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
                                        const OptionalTensor& step_offset) {
  constexpr const char* kOp = "pre_norm_feed_forward_block";
  const LinearLayers layers(kOp, 2, weights, biases, half_copies, /*may_lack_biases=*/true);
  const auto numbers = tensor_of(row_numbers), shift = tensor_of(norm_bias);
  check_norm(kOp, x, norm_weight, shift);
  check_one_a_row(kOp, numbers, x.size(0));
  TORCH_CHECK_VALUE(weights[0].size(1) == x.size(1) && weights[0].size(0) == 2 * weights[1].size(1) &&
                        weights[1].size(0) == x.size(1),
                    "mezzo::", kOp, ": rows ", x.sizes(), " cannot have weights ", weights[0].sizes(), " and ",
                    weights[1].sizes());
  const PreNormFeedForwardParams params{.norm = {norm_weight, shift, norm_eps},
                                        .intermediate = layers[0],
                                        .output = layers[1],
                                        .activation = parse_activation(kOp, activation),
                                        .dropout = DropoutSite::of(dropout, seed, step, site, step_offset, x.device())};
  return kCompute(x, params, numbers);
}

at::Tensor choose_pre_norm_feed_forward(const at::Tensor& x,
                                        const PreNormFeedForwardParams& params,
                                        const at::Tensor& row_numbers) {
  return fused::can_run_pre_norm(x) ? fused::pre_norm_feed_forward(dense(x), params, dense(row_numbers))
                                    : reference::pre_norm_feed_forward_block(x, params, row_numbers);
}

const kernels::Operator<decltype(pre_norm_feed_forward_kernel<choose_pre_norm_feed_forward>)> pre_norm_feed_forward_op(
    "pre_norm_feed_forward_block(Tensor x, Tensor[] weights, Tensor[] biases, Tensor[] half_copies, str activation, "
    "Tensor norm_weight, Tensor? norm_bias, float norm_eps, float dropout, int seed, int step, int site, "
    "Tensor? row_numbers, Tensor? step_offset=None) -> Tensor",
    kernels::meta_like_first(),
    kernels::choosing_kernels<&pre_norm_feed_forward_kernel<choose_pre_norm_feed_forward>>(),
    kernels::kernel<&pre_norm_feed_forward_kernel<reference::pre_norm_feed_forward_block>>(
        c10::DispatchKey::CompositeImplicitAutograd));

}  // namespace

at::Tensor pre_norm_attention_block(const at::Tensor& x,
                                    const PreNormAttentionParams& params,
                                    const SequenceLayoutPtr& layout) {
  if (has_lora(params.query_key_value, params.output)) return reference::pre_norm_attention_block(x, params, layout);
  const LinearLists layers(params.query_key_value, params.output);
  return pre_norm_attention_op(x, layers.weights, layers.biases, layers.half_copies,
                               kernels::if_defined(params.norm.weight), kernels::if_defined(params.norm.bias),
                               params.norm.eps, layout, without_tables(params.attention), params.output_dropout.p,
                               params.output_dropout.key.site);
}

at::Tensor pre_norm_feed_forward_block(const at::Tensor& x,
                                       const PreNormFeedForwardParams& params,
                                       const at::Tensor& row_numbers) {
  if (has_lora(params.intermediate, params.output)) {
    return reference::pre_norm_feed_forward_block(x, params, row_numbers);
  }
  const LinearLists layers(params.intermediate, params.output);
  const auto& dropout = params.dropout;
  return pre_norm_feed_forward_op(x, layers.weights, layers.biases, layers.half_copies, to_string(params.activation),
                                  params.norm.weight, kernels::if_defined(params.norm.bias), params.norm.eps, dropout.p,
                                  seed_of(dropout), dropout.key.step, dropout.key.site,
                                  kernels::if_defined(row_numbers), kernels::if_defined(dropout.step_offset));
}

}  // namespace mezzo::encoder
