#include "encoder/fused/pre_norm.h"

namespace mezzo::encoder::fused {
namespace {

struct PreNormFeedForwardSettings {
  Activation activation;
  double eps;
  DropoutSite dropout;
  at::Tensor row_numbers;
  bool is_differentiable;
  at::ScalarType weight_dtype, dtype;  ///< the last one of products
};

struct PreNormFeedForward : torch::autograd::Function<PreNormFeedForward> {
  enum Input {
    kX,
    kNormWeight,
    kNormBias,
    kIntermediateWeight,
    kIntermediateBias,
    kOutputWeight,
    kOutputBias,
    kInputs
  };

  /// Weights twice: where their gradients go, and at the end what to compute with.
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& x,
                            const at::Tensor& norm_weight,
                            const MaybeTensor& norm_bias,
                            const at::Tensor& /*intermediate_weight*/,
                            const MaybeTensor& intermediate_bias,
                            const at::Tensor& /*output_weight*/,
                            const MaybeTensor& output_bias,
                            const PreNormFeedForwardSettings& settings,
                            const at::Tensor& intermediate_weight,
                            const at::Tensor& output_weight) {
    const NoAutocast no_autocast;
    const PreNormOps& ops = pre_norm_ops_of(x);
    const auto dtype = settings.dtype;
    const auto shift = norm_bias.value_or(at::Tensor()), inner_bias = intermediate_bias.value_or(at::Tensor()),
               outer_bias = output_bias.value_or(at::Tensor());
    const auto inner = matrix_product(ops.layer_norm(x, {norm_weight, shift, settings.eps}, dtype, nullptr),
                                      intermediate_weight.t(), dtype);  // [T, 2 F]
    const auto product = matrix_product(
        ops.gated_activation(inner, inner_bias, settings.activation, settings.dropout, settings.row_numbers),
        output_weight.t(), dtype);
    if (settings.is_differentiable) {
      ctx->save_for_backward(
          {x, norm_weight, shift, intermediate_weight, inner_bias, output_weight, outer_bias, inner});
      keep(ctx, settings);
    }
    return ops.residual_dropout(product, outer_bias, x, /*dropout=*/{}, /*row_numbers=*/{});
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    check_once_differentiable("feed-forward block");
    const NoAutocast no_autocast;
    const SideStream aside;
    const auto saved = ctx->get_saved_variables();
    const auto holder = kept<PreNormFeedForwardSettings>(ctx);
    const PreNormFeedForwardSettings& settings = holder->settings;
    const auto &x = saved[kX], &inner = saved[kInputs];
    const PreNormOps& ops = pre_norm_ops_of(x);
    const auto dtype = saved[kIntermediateWeight].scalar_type();
    const auto grad = grads[0].contiguous();

    const auto outer =
        ops.residual_dropout_backward(grad, saved[kOutputBias].defined(), /*dropout=*/{}, /*row_numbers=*/{}, dtype);
    const auto middle = ops.gated_activation_backward(matrix_product(outer.product, saved[kOutputWeight]), inner,
                                                      saved[kIntermediateBias], settings.activation, settings.dropout,
                                                      settings.row_numbers);
    Normalised normalised;
    const auto input = ops.layer_norm(x, {saved[kNormWeight], saved[kNormBias], settings.eps}, dtype, &normalised);
    variable_list result(kInputs + 3);
    Products products;
    result[kOutputWeight] =
        grad_weight(ctx, edge_of(saved, kOutputWeight), products, outer.product, middle.output, settings.weight_dtype);
    result[kIntermediateWeight] =
        grad_weight(ctx, edge_of(saved, kIntermediateWeight), products, middle.product, input, settings.weight_dtype);
    const auto grad_input = products.add(middle.product, saved[kIntermediateWeight]);
    products.compute();
    const auto of_norm = ops.layer_norm_backward(grad_input, normalised, saved[kNormWeight], grad, x.scalar_type());
    result[kX] = of_norm.x;
    result[kNormWeight] = grad_vector(of_norm.norm.weight, saved[kNormWeight]);
    result[kNormBias] = grad_if_defined(of_norm.norm.bias, saved[kNormBias]);
    result[kIntermediateBias] = grad_if_defined(middle.bias, saved[kIntermediateBias]);
    result[kOutputBias] = grad_if_defined(outer.bias, saved[kOutputBias]);
    return result;
  }
};

}  // namespace

at::Tensor pre_norm_feed_forward(const at::Tensor& x,
                                 const PreNormFeedForwardParams& params,
                                 const at::Tensor& row_numbers) {
  const auto dtype = compute_dtype(x);
  const Weight intermediate(params.intermediate, dtype), output(params.output, dtype);
  return PreNormFeedForward::apply(
      x, params.norm.weight, if_defined(params.norm.bias), intermediate.leaf, if_defined(params.intermediate.bias),
      output.leaf, if_defined(params.output.bias),
      PreNormFeedForwardSettings{params.activation, params.norm.eps, params.dropout, row_numbers,
                                 at::GradMode::is_enabled(), intermediate.leaf.scalar_type(), dtype},
      intermediate.value, output.value);
}

}  // namespace mezzo::encoder::fused
