#include <utility>

#include "encoder/fused/block.h"
#include "encoder/fused/nodes.h"

namespace mezzo::encoder::fused {
namespace {

struct Finish : torch::autograd::Function<Finish> {
  struct Settings {
    std::optional<Activation> activation;
    bool is_gated;
    DropoutSite inner_dropout, dropout;
    double eps;
    at::Tensor row_numbers;
    bool is_differentiable;
    at::ScalarType residual_dtype, weight_dtype, dtype;  ///< the last one of products
    at::Tensor weight;                                   ///< to compute with
  };

  enum Input { kRows, kInnerBias, kWeight, kBias, kResidual, kNormWeight, kNormBias, kInputs };
  enum Saved { kNormalised = kInputs, kRstd };  // behind the inputs

  static at::Tensor activated(at::TensorList tensors, const Settings& settings) {
    const at::Tensor &rows = tensors[kRows], &bias = tensors[kInnerBias];
    const BlockOps& ops = ops_of(rows);
    return !settings.activation ? rows
           : settings.is_gated
               ? ops.gated_activation(rows, bias, *settings.activation, settings.inner_dropout, settings.row_numbers)
               : ops.bias_activation(rows, bias, *settings.activation);
  }

  static at::Tensor forward(AutogradContext* ctx, at::TensorList given, const Settings& settings) {
    const NoAutocast no_autocast;
    const auto inputs = inputs_of(given);
    const at::Tensor &bias = inputs[kBias], &residual = inputs[kResidual], &norm_weight = inputs[kNormWeight];
    const BlockOps& ops = ops_of(residual);
    const auto product = matrix_product(activated(inputs, settings), settings.weight.t(), settings.dtype);
    Normalised normalised;
    auto output = norm_weight.defined()
                      ? ops.residual_layer_norm(product, bias, residual, {norm_weight, inputs[kNormBias], settings.eps},
                                                settings.dropout, settings.row_numbers,
                                                settings.is_differentiable ? &normalised : nullptr)
                      : ops.residual_dropout(product, bias, residual, settings.dropout, settings.row_numbers);
    NextInput::attach(output, std::move(normalised.copy));
    if (settings.is_differentiable) {
      variable_list saved = inputs;
      saved[kWeight] = settings.weight;
      saved[kResidual] = at::Tensor();
      saved.insert(saved.end(), {normalised.rows, normalised.rstd});
      ctx->save_for_backward(std::move(saved));
      Settings of_backward = settings;
      of_backward.weight = at::Tensor();
      keep(ctx, std::move(of_backward));
    }
    return output;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const Backward<Settings> node(ctx, "linear layer");
    const Settings& settings = node.settings;
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &rows = saved[kRows], &weight = saved[kWeight];
    variable_list result(kInputs + 1);
    const auto product = backward_of_ending(grads[0].contiguous(), saved, settings, result);
    Products products;
    const auto grad_weight_by = [&](const at::Tensor& input) {
      return grad_weight(ctx, kWeight, products, product, input, settings.weight_dtype);
    };
    if (!settings.activation) {
      result[kWeight] = grad_weight_by(rows);
      result[kRows] = products.add(product, weight);
    } else {
      const auto inner = backward_of_activation(matrix_product(product, weight), saved, settings);
      result[kWeight] = grad_weight_by(inner.output);
      result[kRows] = inner.product;
      result[kInnerBias] = grad_if_defined(inner.bias, saved[kInnerBias]);
    }
    products.compute();
    return result;
  }

 private:
  /// The gradient of the product; others go to `result`.
  static at::Tensor backward_of_ending(const at::Tensor& grad,
                                       const variable_list& saved,
                                       const Settings& settings,
                                       variable_list& result) {
    const BlockOps& ops = ops_of(grad);
    const at::Tensor& bias = saved[kBias];
    if (!saved[kNormWeight].defined()) {
      const auto outer =
          ops.residual_dropout_backward(grad, bias.defined(), settings.dropout, settings.row_numbers, settings.dtype);
      result[kResidual] = grad;
      result[kBias] = grad_if_defined(outer.bias, bias);
      return outer.product;
    }
    const auto outer =
        ops.residual_layer_norm_backward(grad, {saved[kNormalised], saved[kRstd]}, saved[kNormWeight], settings.dropout,
                                         settings.row_numbers, settings.dtype, settings.residual_dtype);
    result[kResidual] = outer.residual;
    result[kBias] = grad_vector(outer.bias, bias);
    result[kNormWeight] = grad_vector(outer.norm.weight, saved[kNormWeight]);
    result[kNormBias] = grad_vector(outer.norm.bias, saved[kNormBias]);
    return outer.product;
  }

  static ActivationGradients backward_of_activation(const at::Tensor& grad,
                                                    const variable_list& saved,
                                                    const Settings& settings) {
    const at::Tensor &rows = saved[kRows], &bias = saved[kInnerBias];
    const BlockOps& ops = ops_of(grad);
    return settings.is_gated ? ops.gated_activation_backward(grad, rows, bias, *settings.activation,
                                                             settings.inner_dropout, settings.row_numbers)
                             : ops.bias_activation_backward(grad, rows, bias, *settings.activation);
  }
};

}  // namespace

at::Tensor finish(const at::Tensor& rows,
                  const std::optional<InnerActivation>& activation,
                  const LinearParams& layer,
                  const at::Tensor& residual,
                  const Ending& ending) {
  const auto dtype = rows.scalar_type();
  const Weight weight(layer, dtype);
  const std::vector<at::Tensor> inputs{rows,
                                       activation ? activation->bias : at::Tensor(),
                                       weight.leaf,
                                       layer.bias,
                                       residual,
                                       ending.norm.weight,
                                       ending.norm.bias};
  return apply_node<Finish>(
      inputs, Finish::Settings{activation ? std::optional(activation->kind) : std::nullopt,
                               activation && activation->is_gated, activation ? activation->dropout : DropoutSite{},
                               ending.dropout, ending.norm.eps, ending.row_numbers, at::GradMode::is_enabled(),
                               residual.scalar_type(), weight.leaf.scalar_type(), dtype, weight.value});
}

}  // namespace mezzo::encoder::fused
