#include <ATen/ops/index_add.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include "kernels/cpu/attention_ops.h"
#include "kernels/fused/block.h"

namespace mezzo::kernels::fused {
namespace {

struct Settings {
  int64_t num_heads;
  double eps;
  DropoutSite weights_dropout, output_dropout;
  std::vector<Sequence> sequences;
  at::Tensor first_rows;  // undefined where all rows are computed
  bool is_differentiable;
  at::ScalarType x_dtype, weight_dtype;
};

/// The rows whose outputs are computed.
at::Tensor chosen(const at::Tensor& rows, const Settings& settings) {
  return settings.first_rows.defined() ? rows.index_select(0, settings.first_rows) : rows;
}

struct Attention : torch::autograd::Function<Attention> {
  enum Input {
    kX,
    kQueryWeight,
    kQueryBias,
    kKeyWeight,
    kKeyBias,
    kValueWeight,
    kValueBias,
    kOutputWeight,
    kOutputBias,
    kNormWeight,
    kNormBias,
    kInputs
  };

  /// Inputs as in the enumeration, where gradients go; then the weights to compute with.
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
                            const Settings& settings,
                            const at::Tensor& query_weight,
                            const at::Tensor& key_weight,
                            const at::Tensor& value_weight,
                            const at::Tensor& output_weight) {
    const NoAutocast no_autocast;
    const auto dtype = query_weight.scalar_type();
    const auto input = x.to(dtype), query_input = chosen(input, settings);
    cpu::Products products;
    const cpu::PackedAttention attention{
        products.add(query_input, query_weight.t()),
        products.add(input, key_weight.t()),
        products.add(input, value_weight.t()),
        {rounded(query_bias, dtype), rounded(key_bias, dtype), rounded(value_bias, dtype)},
        settings.num_heads,
        settings.sequences,
        settings.weights_dropout};
    products.compute();
    at::Tensor log_sum_exp;
    const auto context = cpu::packed_attention(attention, settings.is_differentiable ? &log_sum_exp : nullptr);
    cpu::Normalised normalised;
    auto output =
        cpu::residual_layer_norm(matrix_product(context, output_weight.t()), rounded(output_bias, dtype),
                                 chosen(x, settings), {norm_weight, norm_bias, settings.eps}, settings.output_dropout,
                                 settings.first_rows, settings.is_differentiable ? &normalised : nullptr);
    if (settings.is_differentiable) {
      ctx->save_for_backward({input, query_weight, query_bias, key_weight, key_bias, value_weight, value_bias,
                              output_weight, output_bias, norm_weight, norm_bias, attention.query, attention.key,
                              attention.value, log_sum_exp, context, normalised.rows, normalised.rstd});
      keep(ctx, settings);
    }
    return output;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    check_once_differentiable("attention block");
    const NoAutocast no_autocast;
    const auto saved = ctx->get_saved_variables();
    const auto holder = kept<Settings>(ctx);
    const Settings& settings = holder->settings;
    const auto& input = saved[kX];
    const auto &query = saved[kInputs], &key = saved[kInputs + 1], &value = saved[kInputs + 2],
               &log_sum_exp = saved[kInputs + 3], &context = saved[kInputs + 4];
    const auto dtype = input.scalar_type();

    const auto outer = cpu::residual_layer_norm_backward(
        grads[0].contiguous(), {saved[kInputs + 5], saved[kInputs + 6]}, saved[kNormWeight], settings.output_dropout,
        settings.first_rows, dtype, settings.x_dtype);
    const cpu::PackedAttention attention{
        query,
        key,
        value,
        {rounded(saved[kQueryBias], dtype), rounded(saved[kKeyBias], dtype), rounded(saved[kValueBias], dtype)},
        settings.num_heads,
        settings.sequences,
        settings.weights_dropout};
    variable_list result(kInputs + 5);
    cpu::Products of_output;
    const auto grad_context = of_output.add(outer.product, saved[kOutputWeight]);
    result[kOutputWeight] = grad_weight(ctx, kOutputWeight, of_output, outer.product, context, settings.weight_dtype);
    of_output.compute();
    const auto inner = cpu::packed_attention_backward(attention, log_sum_exp, grad_context);

    cpu::Products products;
    result[kQueryWeight] =
        grad_weight(ctx, kQueryWeight, products, inner.query, chosen(input, settings), settings.weight_dtype);
    result[kKeyWeight] = grad_weight(ctx, kKeyWeight, products, inner.key, input, settings.weight_dtype);
    result[kValueWeight] = grad_weight(ctx, kValueWeight, products, inner.value, input, settings.weight_dtype);
    // Where not all rows are computed, the others have no gradient through the residual and the queries.
    const bool is_whole = !settings.first_rows.defined();
    result[kX] = is_whole ? outer.residual : at::zeros(input.sizes(), outer.residual.options());
    products.add_to(outer.residual, inner.query, saved[kQueryWeight]);
    products.add_to(result[kX], inner.key, saved[kKeyWeight]);
    products.add_to(result[kX], inner.value, saved[kValueWeight]);
    products.compute();
    if (!is_whole) {
      result[kX].index_add_(0, settings.first_rows, outer.residual);
    }
    result[kQueryBias] = grad_vector(inner.biases.query, saved[kQueryBias]);
    result[kKeyBias] = grad_vector(inner.biases.key, saved[kKeyBias]);
    result[kValueBias] = grad_vector(inner.biases.value, saved[kValueBias]);
    result[kOutputBias] = grad_vector(outer.bias, saved[kOutputBias]);
    result[kNormWeight] = grad_vector(outer.norm.weight, saved[kNormWeight]);
    result[kNormBias] = grad_vector(outer.norm.bias, saved[kNormBias]);
    return result;
  }
};

}  // namespace

at::Tensor attention(const at::Tensor& x,
                     const AttentionParams& params,
                     const SequenceLayout& layout,
                     bool only_first_rows) {
  const auto dtype = compute_dtype(x);
  const Weight query(params.query, dtype), key(params.key, dtype), value(params.value, dtype),
      output(params.output, dtype);
  return Attention::apply(x, query.leaf, params.query.bias, key.leaf, params.key.bias, value.leaf, params.value.bias,
                          output.leaf, params.output.bias, params.norm.weight, params.norm.bias,
                          Settings{params.num_heads, params.norm.eps, params.weights_dropout, params.output_dropout,
                                   layout.sequences(), only_first_rows ? layout.first_rows() : at::Tensor(),
                                   at::GradMode::is_enabled(), x.scalar_type(), query.leaf.scalar_type()},
                          query.value, key.value, value.value, output.value);
}

}  // namespace mezzo::kernels::fused
