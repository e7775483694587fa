#include "encoder/blocks.h"

#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <string>
#include <string_view>
#include <vector>

#include "encoder/fused_blocks.h"
#include "kernels/operator.h"

namespace mezzo::kernels {
namespace {

using c10::DispatchKey;
using OptionalTensor = std::optional<at::Tensor>;

at::Tensor tensor_of(const OptionalTensor& tensor) { return tensor.value_or(at::Tensor()); }
OptionalTensor if_given(const at::Tensor& tensor) { return tensor.defined() ? OptionalTensor(tensor) : std::nullopt; }
int64_t seed_of(const DropoutSite& dropout) { return static_cast<int64_t>(dropout.key.seed); }

Activation parse_activation(std::string_view name) {
  TORCH_CHECK_VALUE(name == "gelu" || name == "gelu_tanh" || name == "relu",
                    "mezzo::feed_forward_block: activation is '", name, "', expected gelu, gelu_tanh or relu");
  return name == "gelu" ? Activation::kGelu : name == "relu" ? Activation::kRelu : Activation::kGeluTanh;
}

std::string_view to_string(Activation activation) {
  return activation == Activation::kGelu ? "gelu" : activation == Activation::kRelu ? "relu" : "gelu_tanh";
}

/// The linear layers of a block, as its operator takes them: shadows of all, or of none.
struct LinearLists {
  template <class... Params>
  explicit LinearLists(const Params&... layers)
      : weights{layers.weight...}, biases{layers.bias...}, shadows{layers.shadow...} {
    if (!shadows.front().defined()) {
      shadows.clear();
    }
  }
  std::vector<at::Tensor> weights, biases, shadows;
};

struct LinearLayers {
  LinearLayers(std::string_view op,
               size_t count,
               at::TensorList the_weights,
               at::TensorList the_biases,
               at::TensorList the_shadows)
      : weights(the_weights), biases(the_biases), shadows(the_shadows) {
    TORCH_CHECK_VALUE(weights.size() == count && biases.size() == count && (shadows.empty() || shadows.size() == count),
                      "mezzo::", op, ": needs ", count, " weights and biases, and as many shadows or none, got ",
                      weights.size(), ", ", biases.size(), " and ", shadows.size());
  }
  LinearParams operator[](size_t i) const {
    return {weights[i], biases[i], shadows.empty() ? at::Tensor() : shadows[i]};
  }
  at::TensorList weights, biases, shadows;
};

using EmbeddingFunction = at::Tensor(const at::Tensor&,
                                     const at::Tensor&,
                                     const at::Tensor&,
                                     const at::Tensor&,
                                     const at::Tensor&,
                                     const at::Tensor&,
                                     const LayerNormParams&,
                                     const DropoutSite&);

template <EmbeddingFunction& kFused>
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
                            int64_t site) {
  const auto compute = fused::can_run(word) ? kFused : reference::embedding_layer_norm;
  return compute(word, position, token_type, ids, positions, tensor_of(token_types), {norm_weight, norm_bias, norm_eps},
                 {dropout, RandomKey::of(seed, step, site)});
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
                          int64_t /*site*/) {
  return word.new_empty({ids.size(0), word.size(1)});
}

const Operator<decltype(embedding_meta)> embedding_op(
    "embedding_layer_norm(Tensor word, Tensor position, Tensor token_type, Tensor ids, Tensor positions, "
    "Tensor? token_types, Tensor norm_weight, Tensor norm_bias, float norm_eps, float dropout, int seed, int step, "
    "int site) -> Tensor",
    kernel<&embedding_kernel<fused::embeddings>>(DispatchKey::CPU),
    kernel<&embedding_kernel<fused::embeddings>>(DispatchKey::AutogradCPU),
    kernel<&embedding_meta>(DispatchKey::Meta),
    kernel<&embedding_kernel<reference::embedding_layer_norm>>(DispatchKey::CompositeImplicitAutograd));

using AttentionFunction = at::Tensor(const at::Tensor&, const AttentionParams&, const SequenceLayoutPtr&);

template <AttentionFunction& kFused, AttentionFunction& kReference>
at::Tensor attention_kernel(const at::Tensor& x,
                            at::TensorList weights,
                            at::TensorList biases,
                            at::TensorList shadows,
                            const at::Tensor& norm_weight,
                            const at::Tensor& norm_bias,
                            double norm_eps,
                            int64_t num_heads,
                            const SequenceLayoutPtr& layout,
                            double weights_dropout,
                            double output_dropout,
                            int64_t seed,
                            int64_t step,
                            int64_t weights_site,
                            int64_t output_site) {
  const LinearLayers layers("attention_block", 4, weights, biases, shadows);
  const AttentionParams params{.query = layers[0],
                               .key = layers[1],
                               .value = layers[2],
                               .output = layers[3],
                               .norm = {norm_weight, norm_bias, norm_eps},
                               .num_heads = num_heads,
                               .weights_dropout = {weights_dropout, RandomKey::of(seed, step, weights_site)},
                               .output_dropout = {output_dropout, RandomKey::of(seed, step, output_site)}};
  return (fused::can_run(x) ? kFused : kReference)(x, params, layout);
}

at::Tensor attention_like(const at::Tensor& x, const AttentionParams&, const SequenceLayoutPtr&) {
  return at::empty_like(x);
}

at::Tensor first_token_like(const at::Tensor& x, const AttentionParams&, const SequenceLayoutPtr& layout) {
  return x.new_empty({layout->first_rows().size(0), x.size(1)});
}

/// The operator `name` of attention, fused on a CPU.
template <AttentionFunction& kFused, AttentionFunction& kReference, AttentionFunction& kMeta>
struct AttentionOperator {
  explicit AttentionOperator(const std::string& name)
      : op(name +
               "(Tensor x, Tensor[] weights, Tensor[] biases, Tensor[] shadows, Tensor norm_weight, Tensor norm_bias, "
               "float norm_eps, int num_heads, " +
               sequence_layout_schema() +
               " layout, float weights_dropout, float output_dropout, int seed, int step, int weights_site, "
               "int output_site) -> Tensor",
           kernel<&attention_kernel<kFused, kReference>>(DispatchKey::CPU),
           kernel<&attention_kernel<kFused, kReference>>(DispatchKey::AutogradCPU),
           kernel<&attention_kernel<kMeta, kMeta>>(DispatchKey::Meta),
           kernel<&attention_kernel<kReference, kReference>>(DispatchKey::CompositeImplicitAutograd)) {}

  at::Tensor operator()(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout) const {
    const LinearLists layers(params.query, params.key, params.value, params.output);
    const auto& [weights_dropout, output_dropout] = std::tie(params.weights_dropout, params.output_dropout);
    return op(x, layers.weights, layers.biases, layers.shadows, params.norm.weight, params.norm.bias, params.norm.eps,
              params.num_heads, layout, weights_dropout.p, output_dropout.p, seed_of(weights_dropout),
              weights_dropout.key.step, weights_dropout.key.site, output_dropout.key.site);
  }

  Operator<decltype(attention_kernel<kFused, kReference>)> op;
};

const AttentionOperator<fused::attention, reference::attention_block, attention_like> attention_op("attention_block");
const AttentionOperator<fused::first_token_attention, reference::first_token_attention_block, first_token_like>
    first_token_attention_op("first_token_attention_block");

using FeedForwardFunction = at::Tensor(const at::Tensor&, const FeedForwardParams&, const at::Tensor&);

template <FeedForwardFunction& kFused>
at::Tensor feed_forward_kernel(const at::Tensor& x,
                               at::TensorList weights,
                               at::TensorList biases,
                               at::TensorList shadows,
                               c10::string_view activation,
                               const at::Tensor& norm_weight,
                               const at::Tensor& norm_bias,
                               double norm_eps,
                               double dropout,
                               int64_t seed,
                               int64_t step,
                               int64_t site,
                               const OptionalTensor& row_numbers) {
  const LinearLayers layers("feed_forward_block", 2, weights, biases, shadows);
  const FeedForwardParams params{.intermediate = layers[0],
                                 .output = layers[1],
                                 .activation = parse_activation(activation),
                                 .norm = {norm_weight, norm_bias, norm_eps},
                                 .dropout = {dropout, RandomKey::of(seed, step, site)}};
  return (fused::can_run(x) ? kFused : reference::feed_forward_block)(x, params, tensor_of(row_numbers));
}

const Operator<decltype(feed_forward_kernel<fused::feed_forward>)> feed_forward_op(
    "feed_forward_block(Tensor x, Tensor[] weights, Tensor[] biases, Tensor[] shadows, str activation, "
    "Tensor norm_weight, Tensor norm_bias, float norm_eps, float dropout, int seed, int step, int site, "
    "Tensor? row_numbers) -> Tensor",
    kernel<&feed_forward_kernel<fused::feed_forward>>(DispatchKey::CPU),
    kernel<&feed_forward_kernel<fused::feed_forward>>(DispatchKey::AutogradCPU),
    meta_like_first(),
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
                                      const OptionalTensor& row_numbers) {
  return reference::residual_layer_norm(x, residual, {norm_weight, norm_bias, norm_eps},
                                        {dropout, RandomKey::of(seed, step, site)}, tensor_of(row_numbers));
}

const Operator<decltype(residual_layer_norm_kernel)> residual_layer_norm_op(
    "residual_layer_norm(Tensor x, Tensor residual, Tensor norm_weight, Tensor norm_bias, float norm_eps, "
    "float dropout, int seed, int step, int site, Tensor? row_numbers) -> Tensor",
    meta_like_first(),
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
  return embedding_op(word, position, token_type, ids, positions, if_given(token_types), norm.weight, norm.bias,
                      norm.eps, dropout.p, seed_of(dropout), dropout.key.step, dropout.key.site);
}

at::Tensor attention_block(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout) {
  return attention_op(x, params, layout);
}

at::Tensor first_token_attention_block(const at::Tensor& x,
                                       const AttentionParams& params,
                                       const SequenceLayoutPtr& layout) {
  return first_token_attention_op(x, params, layout);
}

at::Tensor feed_forward_block(const at::Tensor& x, const FeedForwardParams& params, const at::Tensor& row_numbers) {
  const LinearLists layers(params.intermediate, params.output);
  const auto& dropout = params.dropout;
  return feed_forward_op(x, layers.weights, layers.biases, layers.shadows, to_string(params.activation),
                         params.norm.weight, params.norm.bias, params.norm.eps, dropout.p, seed_of(dropout),
                         dropout.key.step, dropout.key.site, if_given(row_numbers));
}

at::Tensor residual_layer_norm(const at::Tensor& x,
                               const at::Tensor& residual,
                               const LayerNormParams& norm,
                               const DropoutSite& dropout,
                               const at::Tensor& row_numbers) {
  return residual_layer_norm_op(x, residual, norm.weight, norm.bias, norm.eps, dropout.p, seed_of(dropout),
                                dropout.key.step, dropout.key.site, if_given(row_numbers));
}

}  // namespace mezzo::kernels
