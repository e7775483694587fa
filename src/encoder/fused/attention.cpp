#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>

#include <array>
#include <utility>

#include "encoder/fused/attention_node.h"

namespace mezzo::encoder::fused {
namespace {

constexpr std::array kOfRows{kQueryWeight, kKeyWeight, kValueWeight};  // by which x is multiplied

/// x times each weight, transposed: one product where their memory and the kernels allow,
/// whose columns the three are then.
/// @param biases  if defined, those that the product adds, where it is one: they are undefined afterwards
std::array<at::Tensor, 3> add_products(Products& products,
                                       const at::Tensor& x,
                                       const std::array<at::Tensor, 3>& weights,
                                       AttentionBiases& biases,
                                       at::ScalarType dtype,
                                       bool takes_columns) {
  std::array<at::Tensor, 3> results;
  const auto whole = takes_columns ? side_by_side(weights) : at::Tensor();
  at::Tensor all;
  if (whole.defined() && biases.query.defined()) {
    all = at::addmm(at::cat({biases.query, biases.key, biases.value}).to(dtype), x, whole.t());
    biases = {};
  } else if (whole.defined()) {
    all = products.add(x, whole.t(), dtype);
  }
  for (size_t i = 0; i < 3; ++i) {
    const int64_t hidden = weights[i].size(0);
    results[i] = all.defined() ? all.narrow(1, static_cast<int64_t>(i) * hidden, hidden)
                               : products.add(x, weights[i].t(), dtype);
  }
  return results;
}

struct Attention : torch::autograd::Function<Attention> {
  static constexpr bool kTakesInt8 = true;

  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& x,
                            const at::Tensor& /*query_weight*/,
                            const at::Tensor& query_bias,
                            const at::Tensor& /*key_weight*/,
                            const at::Tensor& key_bias,
                            const at::Tensor& /*value_weight*/,
                            const at::Tensor& value_bias,
                            const at::Tensor& /*output_weight*/,
                            const at::Tensor& output_bias,
                            const at::Tensor& norm_weight,
                            const at::Tensor& norm_bias,
                            const AttentionSettings& settings,
                            const at::Tensor& query_weight,
                            const at::Tensor& key_weight,
                            const at::Tensor& value_weight,
                            const at::Tensor& output_weight) {
    const NoAutocast no_autocast;
    const BlockOps& ops = ops_of(x);
    const auto dtype = settings.dtype;
    const auto input = input_of_products(x, query_weight, dtype);
    Products products;
    // Our kernels add biases as they read; who leaves them to LibTorch's has them added by the product.
    AttentionBiases biases{query_bias, key_bias, value_bias}, of_product;
    const PackedAttention alike{
        input, input, input, biases, settings.num_heads, settings.layout, settings.weights_dropout};
    if (is_left(alike)) {
      std::swap(biases, of_product);
    }
    const auto [query, key, value] =
        add_products(products, input, {query_weight, key_weight, value_weight}, of_product, dtype, ops.takes_columns);
    const PackedAttention attention{query,
                                    key,
                                    value,
                                    of_product.query.defined() ? of_product : biases,
                                    settings.num_heads,
                                    settings.layout,
                                    settings.weights_dropout};
    products.compute();
    AttentionState state;
    const auto context = attend(attention, settings.is_differentiable ? &state : nullptr);
    Normalised normalised;
    auto output = ops.residual_layer_norm(matrix_product(context, output_weight.t(), dtype), output_bias, x,
                                          {norm_weight, norm_bias, settings.eps}, settings.output_dropout,
                                          /*row_numbers=*/{}, settings.is_differentiable ? &normalised : nullptr);
    if (settings.is_differentiable) {
      ctx->save_for_backward({input, query_weight, query_bias, key_weight, key_bias, value_weight, value_bias,
                              output_weight, output_bias, norm_weight, norm_bias, unless_kept(attention.query, state),
                              unless_kept(attention.key, state), unless_kept(attention.value, state), context,
                              normalised.rows, normalised.rstd});
      AttentionSettings of_backward = settings;
      of_backward.state = std::move(state);
      keep(ctx, std::move(of_backward));
    }
    return output;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    check_once_differentiable("attention block");
    const NoAutocast no_autocast;
    const SideStream aside;
    const auto saved = ctx->get_saved_variables();
    const auto holder = kept<AttentionSettings>(ctx);
    const AttentionSettings& settings = holder->settings;
    const auto& input = saved[kX];
    const auto &query = saved[kInputs], &key = saved[kInputs + 1], &value = saved[kInputs + 2],
               &context = saved[kInputs + 3];
    const PackedAttention attention{query,
                                    key,
                                    value,
                                    {saved[kQueryBias], saved[kKeyBias], saved[kValueBias]},
                                    settings.num_heads,
                                    settings.layout,
                                    settings.weights_dropout};
    variable_list result(kAllInputs);
    const auto behind = backward_behind_attention(ctx, grads[0], settings, saved, context,
                                                  {saved[kInputs + 4], saved[kInputs + 5]}, result);
    const auto inner = attend_backward(attention, context, settings.state, behind.context);
    if (!keeps_graph()) holder->settings.state = {};

    Products products;
    const std::array grads_of_rows{inner.query, inner.key, inner.value};
    if (inner.all.defined() && std::ranges::all_of(kOfRows, [&](size_t i) { return ctx->needs_input_grad(i); })) {
      const auto all = grad_weight(ctx, kQueryWeight, products, inner.all, input, settings.weight_dtype);
      const auto parts = split_rows(all, 3);
      for (size_t i = 0; i < 3; ++i) {
        result[kOfRows[i]] = parts[i];
      }
    } else {
      for (size_t i = 0; i < 3; ++i) {
        result[kOfRows[i]] = grad_weight(ctx, kOfRows[i], products, grads_of_rows[i], input, settings.weight_dtype);
      }
    }
    result[kX] = behind.residual;
    const auto weights = inner.all.defined()
                             ? side_by_side({saved[kQueryWeight], saved[kKeyWeight], saved[kValueWeight]})
                             : at::Tensor();
    if (weights.defined()) {
      products.add_to(result[kX], inner.all, weights);
    } else {
      for (size_t i = 0; i < 3; ++i) {
        products.add_to(result[kX], grads_of_rows[i], saved[kOfRows[i]]);
      }
    }
    products.compute();
    set_bias_gradients(inner.biases, saved, result);
    return result;
  }
};

}  // namespace

at::Tensor attention(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout) {
  return params.relative.defined() ? relative_attention(x, params, layout, {})
                                   : apply_attention<Attention>(x, params, layout, {});
}

}  // namespace mezzo::encoder::fused
