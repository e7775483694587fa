#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <tuple>

#include "encoder/fused/attend.h"
#include "encoder/fused/pre_norm.h"

namespace mezzo::encoder::fused {
namespace {

struct PreNormAttentionSettings {
  int64_t num_heads;
  double eps;
  TokenPositions positions;
  DropoutSite weights_dropout, output_dropout;
  SequenceLayoutPtr layout;
  at::Tensor first_rows;  ///< [B] int64; undefined where all rows are computed
  bool is_differentiable;
  at::ScalarType weight_dtype, dtype;  ///< the last one of products
  AttentionState state = {};
};

/// Query, key and value of a matrix with columns, a bias with elements, or a weight with rows, for each.
struct Thirds {
  Thirds(const at::Tensor& all, int64_t dim) {
    const int64_t size = all.defined() ? all.size(dim) / 3 : 0;
    at::Tensor* const parts[] = {&query, &key, &value};
    for (int64_t i = 0; i < 3 && all.defined(); ++i) {
      *parts[i] = all.narrow(dim, i * size, size);
    }
    if (all.defined()) {
      key_value = all.narrow(dim, size, 2 * size);
    }
  }
  at::Tensor query, key, value, key_value;
};

struct PreNormAttention : torch::autograd::Function<PreNormAttention> {
  enum Input { kX, kNormWeight, kNormBias, kWeight, kBias, kOutputWeight, kOutputBias, kInputs };
  enum Saved { kQuery = kInputs, kKey, kValue, kContext };

  static PackedAttention attention_of(const PreNormAttentionSettings& settings,
                                      const at::Tensor& query,
                                      const at::Tensor& key,
                                      const at::Tensor& value,
                                      const at::Tensor& bias) {
    const Thirds biases(bias, 0);
    return {query,
            key,
            value,
            {biases.query, biases.key, biases.value},
            settings.num_heads,
            settings.layout,
            settings.weights_dropout,
            settings.positions,
            settings.first_rows.defined()};
  }

  /// What the products are taken of, in their dtype.
  static at::Tensor input_of(const at::Tensor& x,
                             const at::Tensor& norm_weight,
                             const at::Tensor& norm_bias,
                             double eps,
                             at::ScalarType dtype,
                             Normalised* normalised) {
    return norm_weight.defined() ? pre_norm_ops_of(x).layer_norm(x, {norm_weight, norm_bias, eps}, dtype, normalised)
                                 : x.to(dtype);
  }

  /// Weights twice: where their gradients go, and at the end what to compute with.
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& x,
                            const MaybeTensor& norm_weight,
                            const MaybeTensor& norm_bias,
                            const at::Tensor& /*weight*/,
                            const MaybeTensor& bias,
                            const at::Tensor& /*output_weight*/,
                            const MaybeTensor& output_bias,
                            const PreNormAttentionSettings& settings,
                            const at::Tensor& weight,
                            const at::Tensor& output_weight) {
    const NoAutocast no_autocast;
    const PreNormOps& ops = pre_norm_ops_of(x);
    const auto dtype = settings.dtype;
    const auto scale = norm_weight.value_or(at::Tensor()), shift = norm_bias.value_or(at::Tensor()),
               inner_bias = bias.value_or(at::Tensor()), outer_bias = output_bias.value_or(at::Tensor());
    const auto input = input_of(x, scale, shift, settings.eps, dtype, nullptr);
    const auto& first = settings.first_rows;
    at::Tensor query, key, value;
    Products products;
    if (first.defined()) {
      const Thirds weights(weight, 0);
      const auto rows = products.add(input, weights.key_value.t(), dtype);
      query = products.add(input.index_select(0, first), weights.query.t(), dtype);
      key = rows.narrow(1, 0, x.size(1));
      value = rows.narrow(1, x.size(1), x.size(1));
    } else {
      const Thirds rows(products.add(input, weight.t(), dtype), 1);
      std::tie(query, key, value) = std::tie(rows.query, rows.key, rows.value);
    }
    products.compute();
    AttentionState state;
    const auto context =
        attend(attention_of(settings, query, key, value, inner_bias), settings.is_differentiable ? &state : nullptr);
    if (settings.is_differentiable) {
      ctx->save_for_backward({x, scale, shift, weight, inner_bias, output_weight, outer_bias, unless_kept(query, state),
                              unless_kept(key, state), unless_kept(value, state), context});
      PreNormAttentionSettings of_backward = settings;
      of_backward.state = std::move(state);
      keep(ctx, std::move(of_backward));
    }
    return ops.residual_dropout(matrix_product(context, output_weight.t(), dtype), outer_bias,
                                first.defined() ? x.index_select(0, first) : x, settings.output_dropout, first);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    check_once_differentiable("attention block");
    const NoAutocast no_autocast;
    const SideStream aside;
    const auto saved = ctx->get_saved_variables();
    const auto holder = kept<PreNormAttentionSettings>(ctx);
    const PreNormAttentionSettings& settings = holder->settings;
    const auto &x = saved[kX], &weight = saved[kWeight], &norm_weight = saved[kNormWeight];
    const auto& first = settings.first_rows;
    const PreNormOps& ops = pre_norm_ops_of(x);
    const auto dtype = weight.scalar_type();
    const auto grad = grads[0].contiguous();
    variable_list result(kInputs + 3);

    const auto outer =
        ops.residual_dropout_backward(grad, saved[kOutputBias].defined(), settings.output_dropout, first, dtype);
    Products of_output;
    result[kOutputWeight] = grad_weight(ctx, edge_of(saved, kOutputWeight), of_output, outer.product, saved[kContext],
                                        settings.weight_dtype);
    const auto grad_context = of_output.add(outer.product, saved[kOutputWeight]);
    of_output.compute();
    const auto inner = attend_backward(attention_of(settings, saved[kQuery], saved[kKey], saved[kValue], saved[kBias]),
                                       saved[kContext], settings.state, grad_context);
    if (!keeps_graph()) holder->settings.state = {};

    Normalised normalised;
    const auto input = input_of(x, norm_weight, saved[kNormBias], settings.eps, dtype, &normalised);
    at::Tensor residual = grad;  // the gradient of x that passes attention by
    if (first.defined()) {
      residual = at::zeros(x.sizes(), grad.options());
      ops_of(x).add_to_rows(residual, first, grad);
    }
    Products products;
    const auto total = norm_weight.defined() ? at::Tensor() : residual.to(x.scalar_type(), false, /*copy=*/true);
    if (ctx->needs_input_grad(edge_of(saved, kWeight))) {
      result[kWeight] = at::empty(weight.sizes(), weight.options().dtype(settings.weight_dtype));
      if (first.defined()) {
        const Thirds grads_of_weight(result[kWeight], 0);
        products.assign_aside(grads_of_weight.query, inner.query.t(), input.index_select(0, first));
        products.assign_aside(grads_of_weight.key_value, inner.all.t(), input);
      } else {
        products.assign_aside(result[kWeight], inner.all.t(), input);
      }
    }
    const auto grad_input = add_products(products, total, inner, weight, first);
    products.compute();
    if (first.defined()) {
      ops_of(x).add_to_rows(grad_input.all, first, grad_input.first);
    }
    if (norm_weight.defined()) {
      const auto of_norm = ops.layer_norm_backward(grad_input.all, normalised, norm_weight, residual, x.scalar_type());
      result[kX] = of_norm.x;
      result[kNormWeight] = grad_vector(of_norm.norm.weight, norm_weight);
      result[kNormBias] = grad_if_defined(of_norm.norm.bias, saved[kNormBias]);
    } else {
      result[kX] = grad_input.all;
    }
    if (saved[kBias].defined()) {
      const auto& sums = inner.biases;
      auto all = at::empty({3 * sums.query.size(0)}, sums.query.options());
      SideStream::run({all, sums.query, sums.key, sums.value},
                      [&] { at::cat_out(all, {sums.query, sums.key, sums.value}); });
      result[kBias] = grad_vector(all, saved[kBias]);
    }
    result[kOutputBias] = grad_if_defined(outer.bias, saved[kOutputBias]);
    return result;
  }

 private:
  /// The gradient of the products' input: of all rows, and what the first ones get besides.
  struct GradInput {
    at::Tensor all, first;
  };

  /// @param total  what it is added to; undefined for none
  static GradInput add_products(Products& products,
                                const at::Tensor& total,
                                const AttentionGradients& inner,
                                const at::Tensor& weight,
                                const at::Tensor& first_rows) {
    const auto rows_weight = first_rows.defined() ? Thirds(weight, 0).key_value : weight;
    GradInput grad{total, {}};
    if (total.defined()) {
      products.add_to(total, inner.all, rows_weight);
    } else {
      grad.all = products.add(inner.all, rows_weight);
    }
    if (first_rows.defined()) {
      grad.first = products.add(inner.query, Thirds(weight, 0).query);
    }
    return grad;
  }
};

}  // namespace

at::Tensor pre_norm_attention(const at::Tensor& x,
                              const PreNormAttentionParams& params,
                              const SequenceLayoutPtr& layout) {
  const auto dtype = compute_dtype(x);
  const Weight weight(params.query_key_value, dtype), output(params.output, dtype);
  return PreNormAttention::apply(x, if_defined(params.norm.weight), if_defined(params.norm.bias), weight.leaf,
                                 if_defined(params.query_key_value.bias), output.leaf, if_defined(params.output.bias),
                                 PreNormAttentionSettings{params.num_heads, params.norm.eps, params.positions,
                                                          params.weights_dropout, params.output_dropout, layout,
                                                          params.only_first_rows ? layout->first_rows() : at::Tensor(),
                                                          at::GradMode::is_enabled(), weight.leaf.scalar_type(), dtype},
                                 weight.value, output.value);
}

}  // namespace mezzo::encoder::fused
