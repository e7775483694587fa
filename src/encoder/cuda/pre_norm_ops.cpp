#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/promote_types.h>

#include "encoder/cuda/block_ops.h"
#include "encoder/cuda/pre_norm_launchers.h"
#include "encoder/cuda/row_tensors.h"

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

at::Tensor dense_if_defined(const at::Tensor& vector) { return vector.defined() ? vector.contiguous() : vector; }

/// Memory for the partial sums of columns of a pass; undefined if they are not needed.
at::Tensor room_for_sums(bool are_wanted, int64_t rows, int64_t columns, const at::TensorOptions& options) {
  return are_wanted ? at::empty({ceil_div(rows, kRowsOfSum), columns}, options.dtype(at::kFloat)) : at::Tensor();
}

float* floats_or_none(const at::Tensor& sums) { return sums.defined() ? sums.mutable_data_ptr<float>() : nullptr; }

at::Tensor total(const at::Tensor& sums) { return sums.defined() ? column_sums(sums) : sums; }

}  // namespace

at::Tensor layer_norm(const at::Tensor& x, const LayerNormParams& norm, at::ScalarType dtype, Normalised* normalised) {
  const OnDeviceOf device(x);
  const auto weight = norm.weight.contiguous(), shift = dense_if_defined(norm.bias), output = empty_rows(x, dtype);
  const auto to = outputs_of(output, normalised, normalised != nullptr ? at::empty_like(output) : at::Tensor());
  if (x.numel() > 0) {
    layer_norm({span_of(x), {span_of(weight), span_of(shift), static_cast<float>(norm.eps)}, to, x.size(0), x.size(1)},
               device.stream);
  }
  return output;
}

LayerNormGradients layer_norm_backward(const at::Tensor& grad,
                                       const Normalised& normalised,
                                       const at::Tensor& norm_weight,
                                       const at::Tensor& residual,
                                       at::ScalarType x_dtype) {
  const OnDeviceOf device(grad);
  const auto weight = norm_weight.contiguous(), grad_x = empty_rows(grad, x_dtype);
  const auto sums = run_backward({.grad = span_of(grad),
                                  .normalised = span_of(normalised.rows),
                                  .rstd = floats(normalised.rstd),
                                  .weight = span_of(weight),
                                  .mask = {},
                                  .mask_is_on_output = false,
                                  .row_numbers = nullptr,
                                  .product = {},
                                  .residual = span_of(grad_x),
                                  .added = span_of(residual),
                                  .sums = nullptr,
                                  .rows = grad.size(0),
                                  .columns = grad.size(1)},
                                 grad.options(), device.stream);
  return {grad_x, {sums.select(0, 0), sums.select(0, 1)}};
}

at::Tensor residual_dropout(const at::Tensor& product,
                            const at::Tensor& bias,
                            const at::Tensor& residual,
                            const DropoutSite& dropout,
                            const at::Tensor& row_numbers) {
  const OnDeviceOf device(product);
  const auto bias_values = dense_if_defined(bias),
             output = empty_rows(product, at::promote_types(product.scalar_type(), residual.scalar_type()));
  if (product.numel() > 0) {
    residual_dropout({span_of(product), span_of(bias_values), span_of(residual), mask_of(dropout), numbers(row_numbers),
                      span_of(output), product.size(0), product.size(1)},
                     device.stream);
  }
  return output;
}

ResidualDropoutGradients residual_dropout_backward(const at::Tensor& grad,
                                                   bool has_bias,
                                                   const DropoutSite& dropout,
                                                   const at::Tensor& row_numbers,
                                                   at::ScalarType product_dtype) {
  if (!has_bias && dropout.p == 0) {
    return {grad.to(product_dtype), {}};
  }
  const OnDeviceOf device(grad);
  const auto product = empty_rows(grad, product_dtype),
             sums = room_for_sums(has_bias, grad.size(0), grad.size(1), grad.options());
  if (grad.numel() > 0) {
    residual_dropout_backward({span_of(grad), mask_of(dropout), numbers(row_numbers), span_of(product),
                               floats_or_none(sums), grad.size(0), grad.size(1)},
                              device.stream);
  }
  return {product, total(sums)};
}

at::Tensor gated_activation(const at::Tensor& product,
                            const at::Tensor& bias,
                            Activation activation,
                            const DropoutSite& dropout,
                            const at::Tensor& row_numbers) {
  const OnDeviceOf device(product);
  const int64_t rows = product.size(0), columns = product.size(1) / 2;
  const auto bias_values = dense_if_defined(bias), output = at::empty({rows, columns}, product.options());
  if (output.numel() > 0) {
    gated_activation({.product = span_of(product),
                      .bias = span_of(bias_values),
                      .kind = activation,
                      .mask = mask_of(dropout),
                      .row_numbers = numbers(row_numbers),
                      .output = span_of(output),
                      .grad = {},
                      .sums = nullptr,
                      .rows = rows,
                      .columns = columns},
                     device.stream);
  }
  return output;
}

ActivationGradients gated_activation_backward(const at::Tensor& grad,
                                              const at::Tensor& product,
                                              const at::Tensor& bias,
                                              Activation activation,
                                              const DropoutSite& dropout,
                                              const at::Tensor& row_numbers) {
  TORCH_INTERNAL_ASSERT(grad.scalar_type() == product.scalar_type());
  const OnDeviceOf device(grad);
  const int64_t rows = grad.size(0), columns = grad.size(1);
  const auto bias_values = dense_if_defined(bias), grad_product = empty_rows(product, product.scalar_type()),
             sums = room_for_sums(bias.defined(), rows, 2 * columns, grad.options());
  if (grad.numel() > 0) {
    gated_activation_backward({.product = span_of(product),
                               .bias = span_of(bias_values),
                               .kind = activation,
                               .mask = mask_of(dropout),
                               .row_numbers = numbers(row_numbers),
                               .output = span_of(grad),
                               .grad = span_of(grad_product),
                               .sums = floats_or_none(sums),
                               .rows = rows,
                               .columns = columns},
                              device.stream);
  }
  return {grad_product, grad, total(sums)};
}

}  // namespace mezzo::encoder::MEZZO_CUDA
