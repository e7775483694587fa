#include "encoder/fused/attention_node.h"

namespace mezzo::encoder::fused {
namespace {

struct Attention : torch::autograd::Function<Attention> {
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
    const auto dtype = query_weight.scalar_type();
    const auto input = x.to(dtype);
    Products products;
    const PackedAttention attention{products.add(input, query_weight.t()),
                                    products.add(input, key_weight.t()),
                                    products.add(input, value_weight.t()),
                                    {rounded(query_bias, dtype), rounded(key_bias, dtype), rounded(value_bias, dtype)},
                                    settings.num_heads,
                                    settings.layout,
                                    settings.weights_dropout};
    products.compute();
    at::Tensor log_sum_exp;
    const auto context = ops.packed_attention(attention, settings.is_differentiable ? &log_sum_exp : nullptr);
    Normalised normalised;
    auto output = ops.residual_layer_norm(matrix_product(context, output_weight.t()), rounded(output_bias, dtype), x,
                                          {norm_weight, norm_bias, settings.eps}, settings.output_dropout,
                                          /*row_numbers=*/{}, settings.is_differentiable ? &normalised : nullptr);
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
    const auto holder = kept<AttentionSettings>(ctx);
    const AttentionSettings& settings = holder->settings;
    const auto& input = saved[kX];
    const auto &query = saved[kInputs], &key = saved[kInputs + 1], &value = saved[kInputs + 2],
               &log_sum_exp = saved[kInputs + 3], &context = saved[kInputs + 4];
    const auto dtype = input.scalar_type();
    const BlockOps& ops = ops_of(input);

    const auto outer = ops.residual_layer_norm_backward(grads[0].contiguous(), {saved[kInputs + 5], saved[kInputs + 6]},
                                                        saved[kNormWeight], settings.output_dropout,
                                                        /*row_numbers=*/{}, dtype, settings.x_dtype);
    const PackedAttention attention{
        query,
        key,
        value,
        {rounded(saved[kQueryBias], dtype), rounded(saved[kKeyBias], dtype), rounded(saved[kValueBias], dtype)},
        settings.num_heads,
        settings.layout,
        settings.weights_dropout};
    variable_list result(kAllInputs);
    Products of_output;
    const auto grad_context = of_output.add(outer.product, saved[kOutputWeight]);
    result[kOutputWeight] = grad_weight(ctx, kOutputWeight, of_output, outer.product, context, settings.weight_dtype);
    of_output.compute();
    const auto inner = ops.packed_attention_backward(attention, log_sum_exp, grad_context);

    Products products;
    result[kX] = outer.residual;
    const auto add_linear = [&](AttentionInput weight, const at::Tensor& grad) {
      result[weight] = grad_weight(ctx, weight, products, grad, input, settings.weight_dtype);
      products.add_to(result[kX], grad, saved[weight]);
    };
    add_linear(kQueryWeight, inner.query);
    add_linear(kKeyWeight, inner.key);
    add_linear(kValueWeight, inner.value);
    products.compute();
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

at::Tensor attention(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout) {
  return apply_attention<Attention>(x, params, layout, {});
}

}  // namespace mezzo::encoder::fused
