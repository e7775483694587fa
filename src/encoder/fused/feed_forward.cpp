#include "encoder/fused/block.h"

namespace mezzo::encoder::fused {
namespace {

struct Settings {
  Activation activation;
  double eps;
  DropoutSite dropout;
  at::Tensor row_numbers;
  bool is_differentiable;
  at::ScalarType x_dtype, weight_dtype, dtype;  ///< the last one of products
};

struct FeedForward : torch::autograd::Function<FeedForward> {
  enum Input {
    kX,
    kIntermediateWeight,
    kIntermediateBias,
    kOutputWeight,
    kOutputBias,
    kNormWeight,
    kNormBias,
    kInputs
  };

  /// Weights twice: where their gradients go, and at the end what to compute with.
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& x,
                            const at::Tensor& /*intermediate_weight*/,
                            const at::Tensor& intermediate_bias,
                            const at::Tensor& /*output_weight*/,
                            const at::Tensor& output_bias,
                            const at::Tensor& norm_weight,
                            const at::Tensor& norm_bias,
                            const Settings& settings,
                            const at::Tensor& intermediate_weight,
                            const at::Tensor& output_weight) {
    const NoAutocast no_autocast;
    const BlockOps& ops = ops_of(x);
    const auto dtype = settings.dtype;
    const auto input = input_of_products(x, intermediate_weight, dtype);
    const auto inner = matrix_product(input, intermediate_weight.t(), dtype);  // [T, F]
    const auto product =
        matrix_product(ops.bias_activation(inner, intermediate_bias, settings.activation), output_weight.t(), dtype);
    Normalised normalised;
    auto output =
        ops.residual_layer_norm(product, output_bias, x, {norm_weight, norm_bias, settings.eps}, settings.dropout,
                                settings.row_numbers, settings.is_differentiable ? &normalised : nullptr);
    if (settings.is_differentiable) {
      ctx->save_for_backward({input, intermediate_weight, intermediate_bias, output_weight, output_bias, norm_weight,
                              norm_bias, inner, normalised.rows, normalised.rstd});
      keep(ctx, settings);
    }
    return output;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    check_once_differentiable("feed-forward block");
    const NoAutocast no_autocast;
    const SideStream aside;
    const auto saved = ctx->get_saved_variables();
    const auto &input = saved[0], &intermediate_weight = saved[1], &intermediate_bias = saved[2],
               &output_weight = saved[3], &output_bias = saved[4], &norm_weight = saved[5], &norm_bias = saved[6],
               &inner = saved[7];
    const auto settings = kept<Settings>(ctx);
    const auto& [activation, eps, dropout, row_numbers, is_differentiable, x_dtype, weight_dtype, dtype] =
        settings->settings;
    const BlockOps& ops = ops_of(input);

    auto outer = ops.residual_layer_norm_backward(grads[0].contiguous(), {saved[8], saved[9]}, norm_weight, dropout,
                                                  row_numbers, dtype, x_dtype);
    const auto middle = ops.bias_activation_backward(matrix_product(outer.product, output_weight), inner,
                                                     intermediate_bias, activation);
    variable_list result(kInputs + 3);
    Products products;
    result[kOutputWeight] = grad_weight(ctx, kOutputWeight, products, outer.product, middle.output, weight_dtype);
    result[kIntermediateWeight] = grad_weight(ctx, kIntermediateWeight, products, middle.product, input, weight_dtype);
    products.add_to(outer.residual, middle.product, intermediate_weight);
    products.compute();
    result[kX] = outer.residual;
    result[kIntermediateBias] = grad_vector(middle.bias, intermediate_bias);
    result[kOutputBias] = grad_vector(outer.bias, output_bias);
    result[kNormWeight] = grad_vector(outer.norm.weight, norm_weight);
    result[kNormBias] = grad_vector(outer.norm.bias, norm_bias);
    return result;
  }
};

}  // namespace

at::Tensor feed_forward(const at::Tensor& x, const FeedForwardParams& params, const at::Tensor& row_numbers) {
  const auto dtype = compute_dtype(x);
  const Weight intermediate(params.intermediate, dtype), output(params.output, dtype);
  return FeedForward::apply(
      x, intermediate.leaf, params.intermediate.bias, output.leaf, params.output.bias, params.norm.weight,
      params.norm.bias,
      Settings{params.activation, params.norm.eps, params.dropout, row_numbers, at::GradMode::is_enabled(),
               x.scalar_type(), intermediate.leaf.scalar_type(), dtype},
      intermediate.value, output.value);
}

}  // namespace mezzo::encoder::fused
